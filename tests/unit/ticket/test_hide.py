"""Names in documents and logs of a bundle: one name has one hash, and nothing of a request is told."""

from __future__ import annotations

import pytest

from pdctl.ticket import hide
from pdctl.ticket.hide import Hider, HidingError, field_names, without_secrets
from pdctl.trace.redact import Names

SALT = "00" * 16
NAMES = Names(SALT)


def logged(lines: list[str]) -> list[str]:
    hider = Hider(SALT)
    hider.learn(lines)
    return hider.log(lines)


def test_a_name_has_one_hash_in_a_field_in_a_sentence_and_in_a_recording() -> None:
    hider = Hider(SALT)
    document = {
        "ranks": [{"host": "node-a", "rid": "req-alpha"}, {"host": "lab", "rids": ["<b>odd rid</b>"]}],
        "text": "req-alpha waits on node-a for <b>odd rid</b>",
        "settings": {"decode@node-a:30000": 1 << 60},
    }
    hider.learn(document)
    host, rid, odd = NAMES.host("node-a"), NAMES.rid("req-alpha"), NAMES.rid("<b>odd rid</b>")
    assert hider.document(document) == {
        "ranks": [{"host": host, "rid": rid}, {"host": "lab", "rids": [odd]}],
        "text": f"{rid} waits on {host} for {odd}",
        "settings": {f"decode@{host}:30000": 1 << 60},
    }
    hashed = hider.document({**document, "store": "node-a:29400"})
    hider.learn(hashed)
    assert hider.document(hashed) == hashed


@pytest.mark.parametrize(
    ("text", "gone", "kept"),
    [
        ("decode@10.1.2.3:30000 refused", "10.1.2.3", ":30000 refused"),
        ("http://svc.prod.internal:80/health", "svc.prod", ":80/"),
        ("prefill@node7 has it", "node7", "has it"),
        ("/models/secret/weights.bin is read", "secret", "weights.bin is read"),
        ("rid 0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef", "rid rid-"),
    ],
)
def test_addresses_folders_and_ids_that_nobody_named_go_too(text: str, gone: str, kept: str) -> None:
    said = Hider(SALT).text(text)
    assert gone not in said
    assert kept in said


def test_a_nodeset_of_hosts_is_one_name_and_ranks_are_none() -> None:
    said = Hider(SALT, ["gpu007"]).text("gpu[003-009]: refused; gpu007: refused; decode:tp[0-1]")
    assert said == f"{NAMES.host('gpu[003-009]')}: refused; {NAMES.host('gpu007')}: refused; decode:tp[0-1]"


@pytest.mark.parametrize("text", ["SGLang 0.5.12.post1, torch 2.9.1", "decode@lab:one dp0", "room 16851422098683615"])
def test_versions_labs_and_rooms_stay(text: str) -> None:
    assert Hider(SALT).text(text) == text


def test_keys_and_what_requests_say_never_leave() -> None:
    start = "server_args=ServerArgs(model_path='/m/llama', api_key='sk-123', admin_api_key=None)"
    assert without_secrets(start) == start.replace("'sk-123'", "[left out]")
    assert "sk-1" not in without_secrets("Authorization: Bearer sk-1")
    received = "[2026-11-30 01:51:45 TP0] Receive: obj=GenerateReqInput(text='my secret prompt')"
    assert without_secrets(received) == "[2026-11-30 01:51:45 TP0] [left out: what a request says]"


def test_a_log_loses_the_ids_it_names_itself() -> None:
    lines = logged(["Abort request obj.rid='order-77'", "order-77 ended", "model_path='/m/llama' loaded"])
    rid = NAMES.rid("order-77")
    assert lines[:2] == [f"Abort request obj.rid='{rid}'", f"{rid} ended"]
    assert "llama" not in lines[2]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [left out]"),
        ("via http://user:pa55@proxy:3128", "via http://[left out]@proxy:3128"),
        ("HUGGING_FACE_HUB_TOKEN=hf_abcdefghijk", "HUGGING_FACE_HUB_TOKEN=[left out]"),
        ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=[left out]"),
        ("api_key=['sk-1', 'sk-2'] next", "api_key=[left out] next"),
        (r"password: 'ab\'cd ef' next", "password: [left out] next"),
        ("Decode batch, #token: 512, token usage: 0.06", "Decode batch, #token: 512, token usage: 0.06"),
    ],
)
def test_a_secret_goes_whole_and_what_only_looks_like_one_stays(line: str, kept: str) -> None:
    assert without_secrets(line) == kept


@pytest.mark.parametrize("piece", ["a-", "a", ":", "_-", "a[1-4096] ", "["])
def test_a_line_of_a_log_takes_time_by_its_length(piece: str) -> None:
    line = without_secrets(piece * 200_000)
    assert len(line) < 20_000
    Hider("ab" * 16, ["gpu1"]).text(line)


def test_a_name_that_one_part_tells_goes_from_all() -> None:
    hider = Hider(SALT)
    documents = [
        {"problems": ["ssh: connect to host gpu-9 port 22: refused", "describe pod llm-3 has more"]},
        {"ranks": [{"role": "unknown", "service": "pod/quartz"}, {"role": "decode", "service": "decode@onyx:1"}]},
        {"tcp": "tcp://[fd00::7]:7311", "store": "basalt:29400"},
    ]
    hider.learn(*documents)
    said = hider.text("GPU-9 llm-3.serving quartz onyx basalt fd00::7 on decode")
    hashes = [NAMES.host(name) for name in ("gpu-9", "llm-3.serving", "quartz", "onyx", "basalt", "fd00::7")]
    assert said == f"{' '.join(hashes)} on decode"
    assert not [
        name
        for name in ("gpu-9", "llm-3", "quartz", "onyx", "basalt", "fd00")
        if name in str(hider.document(documents))
    ]
    assert logged(["gpu-9 is gone", "connect to host gpu-9 port 22"])[0] == f"{hashes[0]} is gone"


def test_a_commit_is_no_request() -> None:
    commit = "242ebe9f3c0a1b2c3d4e5f60718293a4b5c6d7e8"
    assert Hider(SALT).text(f"at {commit}") == f"at {commit}"


def test_a_host_called_as_a_field_renames_no_field() -> None:
    hider = Hider(SALT, ["findings"], fields=field_names())
    made = hider.document({"findings": [{"summary": "findings is gone"}], "silent": {"decode@findings:1": "x"}})
    host = NAMES.host("findings")
    assert made == {"findings": [{"summary": f"{host} is gone"}], "silent": {f"decode@{host}:1": "x"}}


@pytest.mark.parametrize("key", ["host", "rid"])
def test_names_without_end_are_not_all_learned(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    for most in ("_MOST_HOSTS", "_MOST_RIDS"):
        monkeypatch.setattr(hide, most, 2)
    hider, seen = Hider(SALT), iter(range(20))

    def check() -> None:
        next(seen)

    hider.check = check
    with pytest.raises(HidingError, match="more than 2"):
        hider.learn([{key: f"order-{number}"} for number in range(1000)])
    assert hider.text("order-1") == "order-1", "nothing of it is known"


def test_names_that_are_too_many_to_be_known_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hide, "_MOST_HOSTS", 2)
    hider = Hider(SALT, ["n1", "n2"])
    with pytest.raises(HidingError, match="more than 2 names"):
        hider.learn(["connect to host gpu-3 port 22"])
    assert hider.text("n2 and gpu-3") == f"{NAMES.host('n2')} and gpu-3"
