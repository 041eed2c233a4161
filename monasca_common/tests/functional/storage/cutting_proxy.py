# SPDX-License-Identifier: Apache-2.0
"""Forward bytes between clients and one server, and close a connection at a word."""

import contextlib
import socket
import threading


class CuttingProxy:
    def __init__(self, server):
        self._server = server
        self._word = None
        self._cuts_answer = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, word, *, answer):
        """Close the next connection on which a client sends ``word``: after the server has answered it, or before
        the server receives it."""
        self._cuts_answer = answer
        self._word = word

    def close(self):
        for each in (self._listener, *self._open):
            _shut(each)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += (client, server)
                answered = threading.Event()  # set: the next answer is not forwarded
                threading.Thread(target=self._carry_questions, args=(client, server, answered), daemon=True).start()
                threading.Thread(target=self._carry_answers, args=(client, server, answered), daemon=True).start()

    def _carry_questions(self, client, server, answered):
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._word is not None and self._word in data:
                    self._word = None
                    if not self._cuts_answer:
                        break
                    answered.set()
                server.sendall(data)
        _shut(client)
        _shut(server)

    def _carry_answers(self, client, server, answered):
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if answered.is_set():
                    break
                client.sendall(data)
        _shut(client)
        _shut(server)


def _shut(connection):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
