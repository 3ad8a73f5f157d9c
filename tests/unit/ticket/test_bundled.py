"""``--from`` a bundle shows what live ranks said, where recordings tell nothing of it, or less."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.probes.config.model import ConfigDocument, ServerConfig
from pdctl.trace.manifest import Collector, new
from pdctl.trace.writer import write_trace

C1 = Path(__file__).resolve().parents[2] / "data" / "sglang-0.5.12.post1-c1.pdtrace"
ROW = Collector(name="config", command="pdctl dump config", status="kept", member="documents/config.json")
SERVER = ServerConfig(server="decode@lab:x", role="decode", cluster="c", engine="lab", version="0", ranks=1)


def bundle(folder: Path, data: bytes) -> Path:
    file = folder / "b.zip"
    made = msgspec.structs.replace(new("took"), collectors=(ROW,))
    write_trace(file, [], made, documents={ROW.member: data})
    return file


def cli(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*map(str, words)])
    return done.exit_code, done.output


def test_settings_of_a_bundle_are_those_that_ranks_said(tmp_path: Path) -> None:
    document = ConfigDocument(servers=(SERVER,), settings=())
    file = bundle(tmp_path, msgspec.json.encode(document))
    code, text = cli("dump", "config", "--from", file, "-o", "json")
    assert (code, json.loads(text)["servers"][0]["server"]) == (0, "decode@lab:x")
    code, text = cli("dump", "config", "--from", file, "--rank", "decode")
    assert code == 2
    assert "a bundle has that as a whole" in text


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b'{"schema":"pdctl.config","servers":7}'])
def test_a_document_that_can_not_be_true_is_none(tmp_path: Path, data: bytes) -> None:
    code, text = cli("dump", "config", "--from", bundle(tmp_path, data))
    assert code == 2
    assert "Give a file that pdctl bundle made" in " ".join(text.split())


def test_a_trace_tells_of_stacks_what_recordings_do_and_nothing_of_settings() -> None:
    assert cli("dump", "config", "--from", C1)[0] == 2
    assert "recorded" in cli("stacks", "--from", C1)[1]
