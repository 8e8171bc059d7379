-- One step of one process at one gate: apply its changes, then give free permits to waiting calls. Runs atomically.
-- KEYS: meta, queue, held, clients, lanes, starts. An id is "client.number"; times are microseconds.
-- The queue is a sorted set of "ticket:id:tenant" by rank. The ranks of one tenant count up from the rank of the head,
-- so that tenants take turns. Equal ranks are ordered by ticket, which grows with the time of arrival.
-- `lanes` holds the last rank of each tenant. `starts` holds the starts of bodies by time; '+inf' is a permit with a
-- body that has not started yet, and counts as a start until then.
local META, QUEUE, HELD, CLIENTS, LANES, STARTS = unpack(KEYS)
local client, epoch, terms = ARGV[1], ARGV[2], ARGV[3]
local concurrency, room, calls, per = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local lease, silence = tonumber(ARGV[8]), tonumber(ARGV[9])
local run, began, asks_all = ARGV[10], tonumber(ARGV[11]), ARGV[12] == '1'
local channel, gate, first = ARGV[13], ARGV[14], 15

local function text(number) return string.format('%.0f', number) end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function is_of(who, id) return string.sub(id, 1, #who + 1) == who .. '.' end
local function stay_of(member) return string.match(member, '^%d+:([^:]+):') end

-- Remove all permits and requests of a process: it has died, or is about to report everything again.
local function drop(who, has_died)
  for _, member in ipairs(redis.call('ZRANGE', QUEUE, 0, -1)) do
    if is_of(who, stay_of(member)) then redis.call('ZREM', QUEUE, member) end
  end
  for _, id in ipairs(redis.call('HKEYS', HELD)) do
    if is_of(who, id) then redis.call('HDEL', HELD, id) end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', STARTS, '+inf', '+inf')) do
    if is_of(who, id) then
      -- A body may have started just before its process died: count it as started now, so that no rate is exceeded.
      if has_died then redis.call('ZADD', STARTS, text(now), id) else redis.call('ZREM', STARTS, id) end
    end
  end
  redis.call('ZREM', CLIENTS, who)
end

local meta = redis.call('HMGET', META, 'epoch', 'terms', 'run', 'seq', 'opens', 'last')
-- A long silence of all processes may mean that the server itself stood still: renew their leases instead of
-- giving their permits away.
if meta[6] and now - tonumber(meta[6]) > lease / 2 and redis.call('EXISTS', HELD) == 1 then
  for _, who in ipairs(redis.call('ZRANGE', CLIENTS, 0, -1)) do redis.call('ZADD', CLIENTS, text(now + lease), who) end
end
for _, who in ipairs(redis.call('ZRANGEBYSCORE', CLIENTS, '-inf', '(' .. text(now))) do drop(who, true) end

-- After the dead were dropped: new numbers are accepted as soon as no other process uses the old ones.
local known = redis.call('ZSCORE', CLIENTS, client)
if meta[1] and meta[2] ~= terms then
  if redis.call('ZCARD', CLIENTS) > (known and 1 or 0) then return {'other', meta[2]} end
end
local seq, opens = tonumber(meta[4] or '0'), math.max(tonumber(meta[5] or '0'), began + silence)
-- A promoted replica may not know the last permits of the server before it: wait until their holders have reported.
if meta[1] and meta[3] ~= run then opens = math.max(opens, now + silence) end
-- The changes build on a memory that is gone, or on a process that was dropped: a full report is needed.
if epoch ~= '' and (not known or epoch ~= meta[1]) then return {'lost'} end
local era = meta[1] or text(now)
-- A full report replaces all that was known of the process; its starts are part of the report.
if epoch == '' and known then drop(client, false) end
redis.call('ZADD', CLIENTS, text(now + lease), client)

local granted, queued, full, spots = {}, {}, {}, {}
local opens_in = -1

local function next_seq() seq = math.max(seq + 1, now); return seq end

-- Also set `opens_in`: microseconds until the passing of time alone gives a permit, -1 if it never does.
local function is_open()
  opens_in = -1
  if now < opens then opens_in = opens - now; return false end
  if concurrency >= 0 and redis.call('HLEN', HELD) >= concurrency then return false end
  if calls >= 0 then
    redis.call('ZREMRANGEBYSCORE', STARTS, '-inf', text(now - per))
    if redis.call('ZCARD', STARTS) >= calls then
      local oldest = redis.call('ZRANGE', STARTS, 0, 0, 'WITHSCORES')[2]
      if oldest ~= 'inf' then opens_in = tonumber(oldest) + per - now end
      return false
    end
  end
  return true
end

-- Tokens grow over all processes and restarts of this gate: `seq` never falls behind the clock.
local function give(id)
  local token = text(next_seq())
  redis.call('HSET', HELD, id, token)
  if calls >= 0 then redis.call('ZADD', STARTS, '+inf', id) end
  if is_of(client, id) then
    table.insert(granted, id); table.insert(granted, token)
  else
    -- The holder is another process, and does not see this answer. A lost notification is repaired by `asks_all`.
    redis.call('PUBLISH', channel .. string.match(id, '^([^.]+)%.'), gate .. ' ' .. id .. ' ' .. token)
  end
end

local function advance()
  while redis.call('EXISTS', QUEUE) == 1 and is_open() do
    give(stay_of(redis.call('ZPOPMIN', QUEUE)[1]))
  end
end

-- An empty queue starts a new order among tenants. `lanes` is pruned, because the number of tenants has no limit.
local function rank_for(tenant)
  local head = redis.call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
  if #head == 0 then redis.call('DEL', LANES) end
  local rank = tonumber(head[2] or '0')
  local last = redis.call('HGET', LANES, tenant)
  if last then rank = math.max(rank, tonumber(last) + 1) end
  redis.call('HSET', LANES, tenant, text(rank))
  if redis.call('HLEN', LANES) > 64 + 2 * redis.call('ZCARD', QUEUE) then
    local lanes = redis.call('HGETALL', LANES)
    for at = 1, #lanes, 2 do
      if tonumber(lanes[at + 1]) < tonumber(head[2] or '0') then redis.call('HDEL', LANES, lanes[at]) end
    end
  end
  return rank
end

local function enter(id, tenant)
  local waiting = redis.call('ZCARD', QUEUE)
  -- Only past an empty queue: no new call overtakes a waiting one.
  if waiting == 0 and is_open() then return give(id) end
  if room >= 0 and waiting >= room then
    table.insert(full, id); table.insert(full, redis.call('HLEN', HELD)); table.insert(full, waiting)
    return
  end
  local rank, member = rank_for(tenant), string.format('%016.0f', next_seq()) .. ':' .. id .. ':' .. tenant
  redis.call('ZADD', QUEUE, text(rank), member)
  spots[id] = member
  table.insert(queued, id); table.insert(queued, text(rank) .. '/' .. member)
end

local function leave(id, spot)
  local member = spots[id] or string.match(spot, '/(.*)$')
  if redis.call('HDEL', HELD, id) == 1 then
    -- A start that happened still counts for the rate; a permit that never started gives it back.
    if redis.call('ZSCORE', STARTS, id) == 'inf' then redis.call('ZREM', STARTS, id) end
  elseif member then
    redis.call('ZREM', QUEUE, member)
  end
end

-- Put a call back at the place that it had before the server forgot it.
local function wait_on(spot)
  local rank, member = string.match(spot, '^(%d+)/(.*)$')
  redis.call('ZADD', QUEUE, rank, member)
  local tenant = string.match(member, '([^:]*)$')
  local last = redis.call('HGET', LANES, tenant)
  if not last or tonumber(last) < tonumber(rank) then redis.call('HSET', LANES, tenant, rank) end
end

local function hold(id, token, has_begun)
  redis.call('HSET', HELD, id, token)
  seq = math.max(seq, tonumber(token))
  -- NX: a start that is already known keeps its time.
  if calls >= 0 then redis.call('ZADD', STARTS, 'NX', has_begun and text(now) or '+inf', id) end
end

local changed = false
for at = first, #ARGV, 5 do
  local kind, id, tenant, spot, token = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  if kind == 'enter' then
    -- Waiting calls get the permits freed by earlier changes before a new call may ask for one.
    if changed then advance(); changed = false end
    enter(id, tenant)
  else
    changed = true
    if kind == 'leave' then leave(id, spot)
    elseif kind == 'begin' then if calls >= 0 then redis.call('ZADD', STARTS, text(now), id) end
    elseif kind == 'wait' then wait_on(spot)
    elseif kind == 'hold' then hold(id, token, true)
    elseif kind == 'pause' then hold(id, token, false) end
  end
end
advance()

-- Grants are also announced by notifications, which may be lost.
if asks_all then
  local all = redis.call('HGETALL', HELD)
  for at = 1, #all, 2 do
    if is_of(client, all[at]) then table.insert(granted, all[at]); table.insert(granted, all[at + 1]) end
  end
end
redis.call('HSET', META, 'epoch', era, 'terms', terms, 'run', run, 'seq', text(seq), 'opens', text(opens), 'last', text(now))
-- An unused gate is forgotten. That is safe: by then all leases and windows are over, and tokens follow the clock.
local keep = math.ceil((2 * lease + math.max(silence, per)) / 1000)
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, keep) end
if redis.call('EXISTS', QUEUE) == 0 then opens_in = -1 end
return {'ok', era, opens_in, granted, queued, full}
