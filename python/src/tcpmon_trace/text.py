"""The text of a file, decompressed."""

from __future__ import annotations

from typing import Iterator

import pyarrow as pa

from .errors import Place, TraceError

_PIECE = 1 << 18
_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}


class Text:
    """The text of a file, in pieces.

    Attributes:
        path: the file.
        is_cut: the file ends within its compressed data; known after the last piece.
    """

    def __init__(self, path: str, begin: bytes) -> None:
        self.path = path
        self.is_cut = False
        self._compression = next((name for name, magic in _MAGIC.items() if begin.startswith(magic)), None)

    def pieces(self) -> Iterator[bytes]:
        """Reads the text, up to its end or its cut.

        Raises:
            TraceError: the compressed data are damaged.
        """
        whole, tail = 0, bytearray()
        # The read that meets a cut drops what it has decompressed before, so a second pass reads that byte by byte.
        for size in (_PIECE, 1):
            try:
                with self._open() as stream:
                    for _ in range(whole):
                        stream.read(_PIECE)
                    while piece := stream.read(size):
                        if size == 1:
                            tail += piece
                        else:
                            whole += 1
                            yield piece
                return
            except OSError as error:
                if self._compression is None:
                    raise
                if "Truncated" not in str(error):
                    raise TraceError(Place(self.path), f"cannot be decompressed: {error}") from error
                self.is_cut = True
        yield bytes(tail)

    def _open(self) -> pa.NativeFile:
        file = pa.OSFile(self.path, "rb")
        return pa.CompressedInputStream(file, self._compression) if self._compression else file
