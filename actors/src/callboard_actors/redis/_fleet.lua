-- One operation of one fleet member. Redis runs each call atomically.
-- KEYS: meta, members, gate (owner, token and state of one key), and the asks and mail of the member concerned.
-- State of an ask to a member: "w" (waiting) until it begins, then "b" (begun); "r" if its asker recalled it first.
-- The first of `begin` and `recall` decides. No ask can be both begun and recalled.
local META, MEMBERS, GATE, ASKS, MAIL = unpack(KEYS)
local op, me, run, began, lease = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local KEPT = 20 -- leases for which the mail of a dead member is kept: its askers may still recall asks

local function text(number) return string.format('%.0f', number) end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local meta = redis.call('HMGET', META, 'run', 'opens', 'common', 'seq')
local opens, seq = tonumber(meta[2] or '0'), tonumber(meta[4] or '0')
if meta[1] ~= run then
  -- A restarted server may have forgotten owners, and a promoted replica may not have heard of all of them. No key is
  -- given away until every earlier owner knows that its lease is over.
  opens = meta[1] and now + lease or began + lease
  redis.call('HSET', META, 'run', run, 'opens', text(opens))
  -- All members register again. The answer to their next heartbeat tells them that they have lost their keys.
  redis.call('DEL', MEMBERS)
end

local function is_alive(who)
  local until_ = redis.call('ZSCORE', MEMBERS, who)
  return until_ and tonumber(until_) >= now
end
local function keep(key) redis.call('PEXPIRE', key, text(KEPT * lease / 1000)) end
local function put(frame) redis.call('XADD', MAIL, '*', 'f', frame); keep(MAIL) end
-- An owner counts only while it is alive: nothing is sent to a dead one, and a dead one begins nothing.
local function is_owner(who, token)
  local found = redis.call('HMGET', GATE, 'm', 't')
  return found[1] == who and found[2] == token and is_alive(who)
end

if op == 'beat' then
  local was = is_alive(me)
  -- Lease and secret must be equal in all members; they may change when no other member is alive.
  if meta[3] ~= ARGV[6] then
    if meta[3] and redis.call('ZCOUNT', MEMBERS, text(now), '+inf') > (was and 1 or 0) then return {'other', meta[3]} end
    redis.call('HSET', META, 'common', ARGV[6])
  end
  redis.call('ZREMRANGEBYSCORE', MEMBERS, '-inf', text(now - KEPT * lease))
  redis.call('ZADD', MEMBERS, text(now + lease), me)
  keep(ASKS); keep(MAIL)
  return was and 1 or 0
elseif op == 'own' then
  local found = redis.call('HMGET', GATE, 'm', 't')
  -- Before the check of `opens`: a live owner can be asked, however recently the server started.
  if found[1] and found[1] ~= me and is_alive(found[1]) then return {found[1], found[2], 0} end
  if now < opens then return {'', '0', text(opens - now)} end
  if not is_alive(me) then return {'', '0', '0'} end
  -- The token: higher than every earlier one of the fleet, also after the server has lost `seq` and the key.
  seq = math.max(seq + 1, now, tonumber(found[2] or '0') + 1)
  redis.call('HSET', META, 'seq', text(seq))
  redis.call('HSET', GATE, 'm', me, 't', text(seq))
  return {me, text(seq), '0'}
elseif op == 'still' then
  return is_owner(ARGV[6], ARGV[7]) and 1 or 0
elseif op == 'send' then
  local owner, token, number, ask, frame = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]
  -- A repetition of an ask that has arrived: report success without a second copy.
  if tonumber(redis.call('HGET', ASKS, 'from:' .. me) or '0') >= tonumber(number) then return 1 end
  if not is_owner(owner, token) then return 0 end
  redis.call('HSET', ASKS, 'from:' .. me, number, ask, 'w')
  put(frame); keep(ASKS)
  return 1
elseif op == 'begin' then
  local token, ask = ARGV[6], ARGV[7]
  local state = redis.call('HGET', ASKS, ask)
  -- 'b' is accepted: the answer to the first "begin" may have been lost.
  if (state ~= 'w' and state ~= 'b') or not is_owner(me, token) then return 0 end
  redis.call('HSET', ASKS, ask, 'b')
  return 1
elseif op == 'recall' then
  local ask, marker = ARGV[6], ARGV[7]
  local state = redis.call('HGET', ASKS, ask)
  -- 'r' is accepted for the same reason. An ask with no entry has its reply, or its owner has been forgotten.
  if state == 'w' or state == 'r' then redis.call('HSET', ASKS, ask, 'r'); return 1 end
  -- Into the asker's own mail, behind any reply that is there: the reply wins, or the marker makes the ask "unknown".
  put(marker)
  return 0
elseif op == 'tell' then
  put(ARGV[6])
  -- The reply and the end of the ask's entry are one step: a recall finds the entry, or the reply in the mail.
  if ARGV[7] ~= '' then redis.call('HDEL', ASKS, ARGV[7]) end
  return 1
elseif op == 'free' then
  local found = redis.call('HMGET', GATE, 'm', 't')
  -- The token stays while there is a state. Without it, saves of earlier owners are refused because the key is gone.
  -- Tokens of later owners are higher in any case; see `own`.
  if found[1] == me and found[2] == ARGV[6] then redis.call('HDEL', GATE, 'm') end
  if redis.call('HEXISTS', GATE, 's') == 0 and redis.call('HEXISTS', GATE, 'm') == 0 then redis.call('DEL', GATE) end
  return 1
elseif op == 'save' then
  local token, state = ARGV[6], ARGV[7]
  local latest = redis.call('HGET', GATE, 't')
  -- Fencing: a later owner exists, or has existed and given the key up without a state. So this save comes too late.
  if not latest or tonumber(latest) > tonumber(token) then return 0 end
  redis.call('HSET', GATE, 't', token, 's', state)
  return 1
elseif op == 'leave' then
  redis.call('ZREM', MEMBERS, me)
  return 1
end
return redis.error_reply('unknown: ' .. op)
