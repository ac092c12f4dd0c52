# Stands between the processes of a tier and keeps all bytes that they say to each other.
import contextlib
import socket
import threading


class Recorder(contextlib.AbstractContextManager):
    """Hands on what comes to `address` to `target`, and back; both are (host, port)."""

    def __init__(self, address, target):
        self.address, self._target = address, target
        self._lock = threading.Lock()
        self._streams = []  # a bytearray for each direction of a connection
        self._listener = socket.create_server(address)
        threading.Thread(target=self._accept, daemon=True).start()

    def __exit__(self, *unused):
        self._listener.close()

    def heard(self):
        with self._lock:
            return [bytes(stream) for stream in self._streams]

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                threading.Thread(target=self._connect, args=(near, far), daemon=True).start()

    def _connect(self, near, far):
        with near, far:
            back = threading.Thread(target=self._hand_on, args=(far, near), daemon=True)
            back.start()
            self._hand_on(near, far)
            back.join()

    def _hand_on(self, source, target):
        stream = bytearray()
        with self._lock:
            self._streams.append(stream)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    stream += data
                target.sendall(data)
        for each, what in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
            with contextlib.suppress(OSError):
                each.shutdown(what)
