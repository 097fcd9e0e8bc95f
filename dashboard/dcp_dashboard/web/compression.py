"""Scripts and styles travel compressed: a page's code is a quarter of its size then.

What a library serves never changes while the server runs, so each text is compressed once. Data of
plans goes as it is: on loopback, compressing it would take longer than sending it.
"""

import gzip
import hashlib
import threading
from collections import OrderedDict

from flask import Flask, Response, request

TYPES = ("text/javascript", "application/javascript", "text/css", "image/svg+xml")
LEAST_BYTES = 1_000
LEVEL = 6
MOST_KEPT = 200


def compress_code(server: Flask) -> None:
    """Compress scripts and styles for browsers that take gzip."""
    kept: OrderedDict[bytes, bytes] = OrderedDict()
    lock = threading.Lock()

    def compressed(data: bytes) -> bytes:
        name = hashlib.blake2b(data, digest_size=16).digest()
        with lock:
            if name not in kept:
                kept[name] = gzip.compress(data, LEVEL, mtime=0)
            kept.move_to_end(name)
            while len(kept) > MOST_KEPT:
                kept.popitem(last=False)
            return kept[name]

    @server.after_request
    def compress(response: Response) -> Response:
        is_code = response.mimetype in TYPES and response.status_code == 200
        if not is_code or "Content-Encoding" in response.headers:
            return response
        response.vary.add("Accept-Encoding")
        if not request.accept_encodings["gzip"]:
            return response
        response.direct_passthrough = False
        data = response.get_data()
        if len(data) >= LEAST_BYTES:
            response.set_data(compressed(data))
            response.headers["Content-Encoding"] = "gzip"
        return response
