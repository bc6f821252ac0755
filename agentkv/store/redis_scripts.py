"""What a Redis server does for a store by itself, in Lua: each script runs as one step.

Under a prefix: ``blob:NAME`` bytes of an entry; ``rows`` by name [size, tenant, place], as JSON; ``PLACE``
(one a tenant and chunk) by name what `held` tells; ``used:TENANT`` names by last use; ``shares`` bytes by
tenant; ``clock`` counts uses.
"""

_FORGET = """
local p = ARGV[1]
local function forget(name)
  local text = redis.call('HGET', p .. 'rows', name)
  if not text then return 0 end
  local size, tenant, place = unpack(cjson.decode(text))
  redis.call('UNLINK', p .. 'blob:' .. name)
  redis.call('HDEL', p .. 'rows', name)
  redis.call('HDEL', place, name)
  redis.call('ZREM', p .. 'used:' .. tenant, name)
  if redis.call('HINCRBY', p .. 'shares', tenant, -size) <= 0 then
    redis.call('HDEL', p .. 'shares', tenant)
  end
  return size
end
"""

PUT = (
    _FORGET
    + """
local name, tenant, place, size, told = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local budget, most_of_one = tonumber(ARGV[7]), tonumber(ARGV[8])
local function pays()
  local flat = redis.call('HGETALL', p .. 'shares')
  local total, mine, most, who = 0, 0, -1, nil
  for i = 1, #flat, 2 do
    local bytes = tonumber(flat[i + 1])
    total = total + bytes
    if flat[i] == tenant then mine = bytes end
    if bytes > most then most, who = bytes, flat[i] end
  end
  if mine + size > most_of_one then return tenant end
  if total + size <= budget then return nil end
  if mine > 0 and mine + size >= most then return tenant end
  return who
end
forget(name)
local evicted = 0
local payer = pays()
while payer do
  local victim = redis.call('ZRANGE', p .. 'used:' .. payer, 0, 0)[1]
  if not victim then return redis.error_reply('NOROOM the books do not add up') end
  forget(victim)
  evicted = evicted + 1
  payer = pays()
end
redis.call('HSET', p .. 'rows', name, cjson.encode({size, tenant, place}))
redis.call('HSET', place, name, told)
redis.call('ZADD', p .. 'used:' .. tenant, redis.call('INCR', p .. 'clock'), name)
redis.call('HINCRBY', p .. 'shares', tenant, size)
return evicted
"""
)
"""ARGV: prefix, name, tenant, place, size, told, budget, bytes of one tenant at most. Makes room as `Shares`
says and enters the entry; the blob is set in the same transaction. Returns how many were evicted."""

DROP = _FORGET + "return forget(ARGV[2])"
"""ARGV: prefix, name. Bytes of what is forgotten, 0 where there was nothing."""

USED = (
    _FORGET
    + """
local name = ARGV[2]
if redis.call('EXISTS', p .. 'blob:' .. name) == 0 then return forget(name) end
local text = redis.call('HGET', p .. 'rows', name)
if text then
  redis.call('ZADD', p .. 'used:' .. cjson.decode(text)[2], 'XX', redis.call('INCR', p .. 'clock'), name)
end
return 0
"""
)
"""ARGV: prefix, name. It was read; or, where the server has lost the blob, it is forgotten."""

HELD = """
local found = {}
for _, place in ipairs(ARGV) do
  for _, told in ipairs(redis.call('HVALS', place)) do found[#found + 1] = told end
end
return found
"""
"""ARGV: places. What is told of all entries there."""

LISTED = """
local p, found = ARGV[1], {}
local tenants = ARGV[2] and {ARGV[2]} or redis.call('HKEYS', p .. 'shares')
for _, tenant in ipairs(tenants) do
  local names = redis.call('ZRANGE', p .. 'used:' .. tenant, 0, -1, 'WITHSCORES')
  for i = 1, #names, 2 do
    local place = cjson.decode(redis.call('HGET', p .. 'rows', names[i]))[3]
    found[#found + 1] = names[i + 1]
    found[#found + 1] = redis.call('HGET', place, names[i])
  end
end
return found
"""
"""ARGV: prefix, or prefix and tenant. The last use of every entry, and what is told of it."""
