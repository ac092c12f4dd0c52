# A client of the data plane over TCP that knows the token of a sequence and keeps to no rule after
# that: what comm/tcp, comm/transport/proof.h and deploy/service/protocol say, in Python.
import functools
import hashlib
import hmac
import os
import socket
import struct

PREAMBLE = b"TRIBTCP1" + struct.pack("<I", 2)
VERSION = 8
HELLO, WELCOME, LAYER_REQUEST, CONTROL = 1, 2, 5, 7
RENEW = 2
BF16_ROWS, BF16_QUERIES = 2, 2


@functools.lru_cache(maxsize=4)
def crc32c(data):
    table = crc32c.__dict__.setdefault("table", [])
    if not table:
        for byte in range(256):
            for _ in range(8):
                byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
            table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class PlaneClient:
    """Proves `sequence` (the control plane's answer to its admission) to the worker at `port`."""

    def __init__(self, port, sequence, timeout_s=5):
        self.id = int(sequence["sequence_id"])
        self.epoch, self.shape = sequence["epoch"], sequence["shape"]
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        try:
            nonce = os.urandom(32)
            self.socket.sendall(PREAMBLE + struct.pack("<Q", self.id) + nonce)
            challenge = self._hear(len(PREAMBLE) + 32)[len(PREAMBLE):]
            said = struct.pack("<BQ", 0, self.id) + nonce + challenge + struct.pack("<i", 0)
            self.socket.sendall(hmac.digest(bytes.fromhex(sequence["token"]), PREAMBLE + said,
                                            hashlib.sha256))
            self.outcome = struct.unpack("<i", self._hear(36)[:4])[0]
        except BaseException:
            self.socket.close()
            raise

    def close(self):
        self.socket.close()

    def frame(self, kind, header, payload_bytes=0):
        """What precedes a message's payload."""
        return struct.pack("<QIHH", payload_bytes, len(header), kind, 0x7B1F) + header

    def hello(self):
        """For a pool with bf16 rows and queries."""
        shape = self.shape
        body = struct.pack("<4sH7iBBf2if", b"TRIB", VERSION, *(shape[name] for name in (
            "heads", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "hidden_size", "layers",
            "leaf_tokens")), BF16_ROWS, BF16_QUERIES, shape["softmax_scale"],
            shape["qk_nope_head_dim"], shape["topk"], shape["latent_norm_eps"])
        self.socket.sendall(self.frame(HELLO, body))
        _, header_bytes, kind, _ = struct.unpack("<QIHH", self._hear(16))
        outcome = struct.unpack("<i", self._hear(header_bytes)[2:6])[0]
        if kind != WELCOME or outcome != 0:
            raise ConnectionError(f"no welcome: message {kind}, outcome {outcome}")

    def layer_request(self, number, layers, tokens, base_length, token_bytes, payload=None):
        """One item a layer; the frame of a payload, and the payload if there is one."""
        header = struct.pack("<QIBIQHH", number, 10_000_000, 0, crc32c(payload or b""),
                             int.from_bytes(os.urandom(8), "little"), 1, len(layers))
        for layer in layers:
            header += struct.pack("<QIqii", self.id, self.epoch, base_length, tokens, layer)
        return self.frame(LAYER_REQUEST, header,
                          len(layers) * tokens * token_bytes) + (payload or b"")

    def renewals(self, number, count):
        """A control with so many renewals of the lease."""
        item = struct.pack("<BQIq", RENEW, self.id, self.epoch, 0)
        return self.frame(CONTROL, struct.pack("<QH", number, count) + count * item)

    def _hear(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionError("closed by the worker")
            data += part
        return data
