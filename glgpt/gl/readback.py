"""Reads textures asynchronously: the driver copies them into a buffer, and a later call reads the buffer."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from glgpt.gl.player import Player
from glgpt.program.formats import Texels


class Readback:
    """A queue of at most `depth` pending copies, oldest first. A copy holds the player's textures `names`.

    The queue's buffers are released with the player.
    """

    def __init__(self, player: Player, names: tuple[str, ...], depth: int) -> None:
        self.player, self.names = player, names
        textures = player.program.textures
        self._sizes = [textures[name].nbytes for name in names]
        self._free = [player.buffer(sum(self._sizes), "readback buffer") for _ in range(depth)]
        self._busy: deque[Any] = deque()

    @property
    def full(self) -> bool:
        """True if all buffers are in use: a copy must be taken before another can start."""
        return not self._free

    def start(self) -> None:
        """Starts a copy of the textures, with the values that they have after all entries played so far.

        An interrupt (KeyboardInterrupt) discards this copy.
        """
        self.player.use()
        offset = 0
        for name, size in zip(self.names, self._sizes, strict=True):
            self.player.textures[name].read_into(self._free[-1], write_offset=offset)
            offset += size
        self._busy.append(self._free.pop())

    def take(self) -> Sequence[Texels]:
        """Returns the oldest copy: for each texture an array of float32, `[layers, height, width, 4]`.

        Waits until the driver has completed the copy. An interrupt (KeyboardInterrupt) leaves the copy in the queue.
        """
        self.player.use()
        data, found, offset = self._busy[0].read(), [], 0
        for name, size in zip(self.names, self._sizes, strict=True):
            t = self.player.program.textures[name]
            flat = np.frombuffer(data, np.float32, size // 4, offset)
            found.append(flat.reshape(t.layers, t.height, t.width, 4))
            offset += size
        self._free.append(self._busy.popleft())
        return found

    def drop(self) -> None:
        """Discards the pending copies."""
        self._free += self._busy
        self._busy.clear()

    def __len__(self) -> int:
        return len(self._busy)
