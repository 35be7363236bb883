"""Wakes: "look at the database now" from one process to others, through the broker.

A wake carries nothing and may be lost: whoever waits also looks by itself after its timeout. To lose few,
each listener has a list of its own per channel, at most one entry long, which keeps a wake that comes while
the listener is busy until it waits again. Listeners are remembered by the broker for a minute after they
last waited.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import Any, Final

import structlog
from redis.exceptions import RedisError

from farm.broker.connection import redis_client

LISTENER_KEPT_S: Final = 60
_REFRESH_S: Final = 15.0
_SLICE_S: Final = 2.0
_RETRY_S: Final = 1.0
_SEND_TIMEOUT_S: Final = 1.0
_PREFIX = "stillframe.wake."

# KEYS[1]: listeners of the channel by the time they were last seen; ARGV[1]: seconds they are kept
_WAKE = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[1])
local listeners = redis.call('ZRANGE', KEYS[1], 0, -1)
for _, listener in ipairs(listeners) do
  local list = KEYS[1] .. '.' .. listener
  if redis.call('LLEN', list) == 0 then redis.call('RPUSH', list, 1) end
  redis.call('EXPIRE', list, ARGV[1])
end
return #listeners
"""
# KEYS[1]: as above; ARGV: seconds kept, listener. Gives 1 for a listener that was not known
_LISTEN = """
local now = tonumber(redis.call('TIME')[1])
local added = redis.call('ZADD', KEYS[1], now, ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[1] * 2)
return added
"""

log = structlog.get_logger(__name__)


class Wakes:
    """Wakes others, and waits to be woken; one object is one listener.

    Any thread may call :meth:`wake`; :meth:`wait` belongs to one thread at a time. Without a broker (``url``
    is ``None``) or while it is away, :meth:`wait` sleeps for its timeout and :meth:`wake` does nothing.
    """

    def __init__(self, url: str | None) -> None:
        self._sender = redis_client(url, timeout_s=_SEND_TIMEOUT_S) if url else None
        self._waiter = redis_client(url, timeout_s=_SLICE_S + 1) if url else None
        self._listener = secrets.token_hex(8)
        self._listening: dict[str, float] = {}
        self._missed = False
        self._away_until = 0.0
        self._closed = threading.Event()
        self._waiting = threading.Lock()

    def wake(self, channel: str) -> bool:
        """Wake every listener of ``channel``; whether the broker took it. Call after the commit."""
        if self._sender is None or time.monotonic() < self._away_until:
            return False
        try:
            self._sender.eval(_WAKE, 1, _PREFIX + channel, LISTENER_KEPT_S)
        except (RedisError, OSError) as error:
            self._note_away(error)
            return False
        return True

    def wait(self, channels: str | list[str], timeout_s: float) -> bool:
        """Wait for a wake on any of the channels; ``False`` when the time is over.

        Also ``True`` at the first wait on a channel and after the broker was away: a wake may have been
        missed, so it is time to look.
        """
        with self._waiting:
            return self._wait([channels] if isinstance(channels, str) else channels, timeout_s)

    def _wait(self, names: list[str], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self._closed.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._waiter is None or time.monotonic() < self._away_until:
                self._closed.wait(min(left, _RETRY_S))
                continue
            try:
                new = [name for name in names if self._listen(name)]
                if new or self._missed:
                    self._missed = False
                    return True
                keys = [f"{_PREFIX}{name}.{self._listener}" for name in names]
                if self._waiter.blpop(keys, timeout=max(min(left, _SLICE_S), 0.01)) is not None:
                    return not self._closed.is_set()
            except (RedisError, OSError) as error:
                self._listening.clear()
                self._missed = True
                self._note_away(error)
        return False

    def _listen(self, channel: str) -> bool:
        now = time.monotonic()
        if now - self._listening.get(channel, float("-inf")) < _REFRESH_S:
            return False
        assert self._waiter is not None
        added: Any = self._waiter.eval(_LISTEN, 1, _PREFIX + channel, LISTENER_KEPT_S, self._listener)
        self._listening[channel] = now
        return bool(added)

    def _note_away(self, error: Exception) -> None:
        if not self._closed.is_set():
            log.warning("the broker is away; polling instead of waking", error=str(error))
        self._away_until = time.monotonic() + _RETRY_S

    def close(self) -> None:
        """End a wait in another thread at once, and close the connections."""
        self._closed.set()
        if self._sender is None or self._waiter is None:
            return
        with contextlib.suppress(RedisError, OSError):
            pipe = self._sender.pipeline()
            for channel in list(self._listening):
                own = f"{_PREFIX}{channel}.{self._listener}"
                pipe.zrem(_PREFIX + channel, self._listener)
                pipe.rpush(own, 1)
                pipe.expire(own, 5)
            pipe.execute()
        self._sender.close()
        with self._waiting:
            self._waiter.close()
