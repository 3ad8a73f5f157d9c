"""Messages over a Unix stream socket."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.protocol.stream import HEAD, Connection, Reader, framed


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.integers(min_value=1, max_value=20))
def test_messages_come_out_as_they_went_in_however_they_are_cut(payloads: list[bytes], step: int) -> None:
    sent = b"".join(map(framed, payloads))
    reader = Reader(50)
    found = [one for at in range(0, len(sent), step) for one in reader.feed(sent[at : at + step])]
    assert (found, reader.held) == (payloads, 0)


@pytest.mark.parametrize("size", [0, 51, 2**32 - 1])
def test_a_length_that_is_not_allowed_is_refused_before_its_bytes_come(size: int) -> None:
    reader = Reader(50)
    assert reader.feed(HEAD.pack(size)[:3]) == []
    with pytest.raises(ValueError, match=f"{size} bytes was announced"):
        reader.feed(HEAD.pack(size)[3:])
    assert reader.held == 0


def test_who_feeds_what_is_wanted_gets_one_message_at_a_time() -> None:
    rest, reader = framed(b"one") + framed(b"two"), Reader(50)
    turns = []
    while rest:
        wanted = reader.wants
        turns.append(reader.feed(rest[:wanted]))
        rest = rest[wanted:]
    assert turns == [[], [b"one"], [], [b"two"]]


def test_a_connection_tells_silence_an_end_and_a_long_answer_apart(tmp_path: Path) -> None:
    path = tmp_path / "s"
    answers = [framed(b"fine"), b"", HEAD.pack(200), None]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        kept = []

        def serve() -> None:
            for answer in answers:
                there, _ = listener.accept()
                there.recv(100)
                if answer is None:
                    kept.append(there)
                    continue
                there.sendall(answer)
                there.close()

        threading.Thread(target=serve, daemon=True).start()
        with Connection(path, limit=100) as connection:
            assert connection.ask(b"?", 60) == b"fine"
            connection.close()
            with pytest.raises(ConnectionError):
                connection.ask(b"?", 60)
            with pytest.raises(OSError, match="200 bytes was announced"):
                connection.ask(b"?", 60)
            with pytest.raises(TimeoutError):
                connection.ask(b"?", 0.05)
        for there in kept:
            there.close()
    with pytest.raises(ConnectionRefusedError):
        Connection(path).ask(b"?", 60)
