-- One operation on one document; ARGV[1] is 'read', 'write' or 'mark'. Redis runs each call atomically.
-- KEYS to read: the document, then its marks. KEYS to write: the document, then the index of its shelf: documents
-- that count towards a maximum, ordered by time of expiry. KEYS to mark: the mark.
-- Anything that is not a hash with a version was written by other software: it counts as absent, and is overwritten.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function text(number) return string.format('%.0f', number) end

-- '' for no document, '?' for foreign data. A number with more digits could not be held exactly by Lua.
local function version_of(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return '' end
  local version = kind == 'hash' and redis.call('HGET', key, 'version')
  if version and #version <= 16 and string.match(version, '^%d+$') then return version end
  return '?'
end

local function put(key, version, body)
  if version == '?' then redis.call('DEL', key) end
  -- Never lower than before, and never lower than the clock: a deleted and rewritten document gets a higher version.
  local new = text(math.max((tonumber(version) or 0) + 1, now))
  redis.call('HSET', key, 'version', new, 'body', body)
  return new
end

-- A missing mark is created, so that a reader and a later `mark` agree on a number that only goes up.
local function mark_of(key)
  local version = version_of(key)
  if version ~= '' and version ~= '?' then return version end
  return put(key, version, '')
end

local function read()
  local key, version, body, marks = KEYS[1], version_of(KEYS[1]), false, {}
  -- The size is checked first: the text of a huge document must not be copied into the answer.
  if version ~= '' and version ~= '?' and redis.call('HSTRLEN', key, 'body') <= tonumber(ARGV[2]) then
    body = redis.call('HGET', key, 'body')
  end
  for at = 2, #KEYS do table.insert(marks, mark_of(KEYS[at])) end
  return {text(now), version, redis.call('PTTL', key), body, marks}
end

local function index(name, lives, most, stem)
  local gone = lives > 0 and text(now + lives * 1000) or '+inf'
  redis.call('ZADD', KEYS[2], gone, name)
  -- Expired documents are gone already; without this they would count towards the maximum.
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now))
  while redis.call('ZCARD', KEYS[2]) > most do
    redis.call('DEL', stem .. redis.call('ZPOPMIN', KEYS[2])[1])
  end
  -- The index lives as long as its last document.
  local longest = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
  if longest == 'inf' then redis.call('PERSIST', KEYS[2])
  elseif longest then redis.call('PEXPIREAT', KEYS[2], text(math.ceil(tonumber(longest) / 1000))) end
end

local function write()
  local expected, is_there, body, lives, most = ARGV[2], ARGV[3] == '1', ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
  local name, stem = ARGV[7], ARGV[8]
  -- Compare and swap: another process has written since the read.
  if version_of(KEYS[1]) ~= expected then return 0 end
  if redis.call('TYPE', KEYS[2]).ok ~= 'zset' then redis.call('DEL', KEYS[2]) end
  if is_there then
    put(KEYS[1], expected, body)
    if lives > 0 then redis.call('PEXPIRE', KEYS[1], lives) else redis.call('PERSIST', KEYS[1]) end
  else
    redis.call('DEL', KEYS[1])
  end
  if is_there and most >= 0 then index(name, lives, most, stem) else redis.call('ZREM', KEYS[2], name) end
  return 1
end

local function mark()
  put(KEYS[1], version_of(KEYS[1]), '')
  -- A mark never expires: after that its number could start again from a lower one.
  redis.call('PERSIST', KEYS[1])
  return 1
end

if ARGV[1] == 'read' then return read() end
if ARGV[1] == 'write' then return write() end
return mark()
