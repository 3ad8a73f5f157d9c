"""Two servers that are asked over HTTP alone: real sockets, SGLang's answers, and servers that misbehave."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.engines.sglang.server import Server
from pdctl.probes.preflight.judge import judge
from pdctl.probes.preflight.model import PreflightDocument
from pdctl.probes.preflight.servers import _Asked, _side, collect
from tests.support.patience import patience
from tests.support.sglang_http import bootstrap, engine, pair, serving

MANIFEST = Path(__file__).parents[3] / "deploy" / "kubernetes" / "preflight.yaml"


def look(prefill: str, decode: str, at: tuple[str, int] | None = None, limit_s: float = 20.0) -> PreflightDocument:
    first, second = Server.parse(prefill, "prefill"), Server.parse(decode, "decode")
    return judge(collect(first, second, at, patience(limit_s), 0.0))


def bad(document: PreflightDocument) -> list[tuple[str, str, str]]:
    return [(one.check, one.verdict, one.code) for one in document.lines if one.verdict in ("error", "warning")]


def said(document: PreflightDocument) -> str:
    return " ".join(f"{one.verdict} {one.check}: {one.found}." for one in document.lines)


def test_a_healthy_pair_is_fit_and_no_secret_is_told() -> None:
    with pair() as (prefill, decode, table):
        document = look(prefill.url, decode.url)
    assert bad(document) == []
    assert document.fit is True
    assert {"/server_info", "/model_info", "/health"} == set(prefill.asked) == set(decode.asked)
    assert set(table.asked) == {"/route"}
    assert f"127.0.0.1:{table.port} answers for prefill, 1 of its ranks were asked for" in said(document)
    assert "secret" not in said(document)


def test_a_setting_that_is_nested_deep_is_none() -> None:
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    told = {"disaggregation_mode": "prefill", "model_path": [*deep, "m"], "architectures": ["A", {"x": deep}]}
    one = _Asked(Server.parse("http://127.0.0.1:1", "prefill"), told=told)
    assert _side(one).values == {"disaggregation_mode": "prefill", "model_path": "m", "architectures": "A"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"page_size": 64}, ("page-size", "error", "PD135")),
        ({"kv_cache_dtype": "fp8_e4m3"}, ("kv-dtype", "error", "PD135")),
        ({"disaggregation_transfer_backend": "nixl"}, ("transfer", "error", "PD135")),
        ({"speculative_algorithm": "EAGLE3"}, ("speculative", "error", "PD135")),
        ({"pp_size": 2}, ("parallel", "error", "PD135")),
        ({"disaggregation_mode": "prefill"}, ("servers", "error", "PD170")),
        ({"disaggregation_mode": "null"}, ("servers", "error", "PD170")),
        ({"version": "0.5.12.post1", "tp_size": 2}, ("defects", "warning", "PD172")),
    ],
)
def test_a_decode_server_that_does_not_fit_is_named(changes: dict[str, Any], expected: tuple[str, str, str]) -> None:
    with pair(decode=engine("decode", **changes)) as (prefill, decode, _):
        assert bad(look(prefill.url, decode.url)) == [expected]


def test_an_older_version_answers_under_older_names() -> None:
    old = engine("decode", version="0.5.9")
    old["/get_server_info"], old["/get_model_info"] = old.pop("/server_info"), old.pop("/model_info")
    with pair(decode=old) as (prefill, decode, _):
        document = look(prefill.url, decode.url)
    assert bad(document) == []
    assert "prefill is 0.5.13.post1 and decode is 0.5.9" in said(document)


@pytest.mark.parametrize(
    ("table", "expected", "words"),
    [
        (
            {"/route": (503, {"error": "1 workers registered"})},
            ("bootstrap", "error", "PD170"),
            "does not know all ranks",
        ),
        (bootstrap(dp_size=4), ("bootstrap", "error", "PD170"), "says dp_size 4, and prefill has 1"),
        ({"/route": (404, b"")}, None, "it is no bootstrap server"),
        ({"/route": (200, b"<html>")}, None, "it is no bootstrap server"),
    ],
)
def test_a_bootstrap_server_that_is_not_ready_or_not_its_own(
    table: dict[str, Any], expected: tuple[str, str, str] | None, words: str
) -> None:
    with pair(table=table) as (prefill, decode, _):
        document = look(prefill.url, decode.url)
    assert bad(document) == ([expected] if expected else [])
    assert document.fit is (False if expected else None)
    assert words in said(document)


def test_a_rank_that_the_bootstrap_server_does_not_know() -> None:
    table = bootstrap(attn_tp_size=2)
    known = table["/route"]

    def route(request: BaseHTTPRequestHandler) -> Any:
        return (404, b"") if "target_tp_rank=1&" in request.path else known(request)

    with pair(table={**table, "/route": route}) as (prefill, decode, at):
        prefill.answers |= engine("prefill", tp_size=2, disaggregation_bootstrap_port=at.port)
        decode.answers |= engine("decode", tp_size=2, version="0.5.23")
        document = look(prefill.url, decode.url)
    assert bad(document) == [("bootstrap", "error", "PD129")]
    assert "does not know prefill dp0 pp0 tp1" in said(document)


def test_a_bootstrap_server_that_nobody_listens_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pair() as (prefill, decode, _):
        document = look(prefill.url, decode.url, ("127.0.0.1", port))
    assert bad(document) == [("bootstrap", "error", "PD145")]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((503, b""), "it is still starting, or is ending"),
        ((401, b""), "PDCTL_API_KEY"),
        ((200, b"<html>"), "it is no SGLang server"),
        ((200, {"hello": 1}), "it is no SGLang server"),
        ((302, b""), "it is no SGLang server"),
        ((200, b"[" * 100_000), "it is no SGLang server"),
        ((200, b" " * (9 << 20)), "longer than"),
    ],
)
def test_a_server_that_is_none_or_not_ready(answer: Any, words: str) -> None:
    with pair(decode={"/server_info": answer}) as (prefill, decode, _):
        document = look(prefill.url, decode.url)
    assert bad(document) == [("servers", "error", "PD170")]
    assert words in said(document)


def test_a_server_whose_health_check_is_not_well_or_does_not_come() -> None:
    sick = engine("decode")
    sick["/health"] = (503, b"")
    with pair(decode=sick) as (prefill, decode, _):
        document = look(prefill.url, decode.url)
    assert bad(document) == [("servers", "error", "PD170")]
    assert "its health check says HTTP 503" in said(document)
    go_on = threading.Event()

    def hang(_: BaseHTTPRequestHandler) -> Any:
        go_on.wait(patience(60))
        return 200, b""

    with pair(decode={**engine("decode"), "/health": hang}) as (prefill, decode, _):
        document = look(prefill.url, decode.url, limit_s=2.0)
        go_on.set()
    assert bad(document) == []
    assert document.fit is None
    assert "its health check had no answer in time" in said(document)


def test_a_server_that_takes_too_long_is_not_said_to_be_gone() -> None:
    with pair() as (prefill, _, _), socket.create_server(("127.0.0.1", 0)) as mute:
        document = look(prefill.url, f"http://127.0.0.1:{mute.getsockname()[1]}", limit_s=2.0)
    assert (bad(document), document.fit) == ([], None)
    assert "unknown servers: no answer within" in said(document)


def test_nothing_a_server_says_gets_out_of_hand() -> None:
    wild = engine(
        "decode", version="\x1b[2J" * 500, page_size={"a": 1}, tp_size="9" * 400, served_model_name=["x" * 10_000]
    )
    with pair(decode=wild) as (prefill, decode, _):
        done = CliRunner().invoke(app, ["preflight", "--prefill-url", prefill.url, "--decode-url", decode.url])
    assert done.exit_code in (1, 3)
    assert "\x1b" not in done.output
    assert len(done.output) < 20_000


def test_exit_codes_of_two_servers() -> None:
    runner = CliRunner()
    with pair() as (prefill, decode, _):
        words = ["preflight", "--prefill-url", prefill.url, "--decode-url", decode.url]
        fit = runner.invoke(app, [*words, "-o", "json"])
        assert (fit.exit_code, json.loads(fit.stdout)["fit"]) == (0, True)
        assert runner.invoke(app, [*words, "--router-timeout", "1h"]).exit_code == 2
        decode.answers |= engine("decode", page_size=64)
        assert runner.invoke(app, words).exit_code == 1
        decode.answers |= engine("decode", version="0.5.12.post1", tp_size=2)
        assert runner.invoke(app, words).exit_code == 1
        assert runner.invoke(app, [*words, "--fail-on", "error"]).exit_code == 0
    gone = runner.invoke(app, words)
    assert gone.exit_code == 4
    assert "connection refused" in gone.output.lower()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--prefill-url", "http://a:1"], "--decode-url is missing"),
        (["--prefill-url", "ftp://a", "--decode-url", "http://a:1"], "is neither http"),
        (["--fail-on", "bad"], "info, warning, error"),
        (["--settings", "x", "--handshake"], "nobody is asked"),
        (["--prefill-url", "http://a:1", "--decode-url", "http://a:1", "--rank", "decode"], "no rank"),
        (["--settings", "/nowhere/a.json"], "can't be read"),
        (["--router-timeout", "soon"], "soon"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["preflight", *words])
    assert done.exit_code in (2, 4)
    assert says in done.output
    assert "Traceback" not in done.output


def containers() -> dict[str, list[str]]:
    """Return kind of the manifest's object → the command line of its container that runs pdctl."""
    found = {}
    for one in yaml.safe_load_all(MANIFEST.read_text()):
        pod = one["spec"]["template"]["spec"]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            if container.get("command", [""])[0] == "pdctl":
                found[one["kind"]] = container["command"]
    return found


def test_the_manifest_of_a_rollout_gate_runs_as_it_is_written() -> None:
    runner = CliRunner()
    commands = containers()
    assert set(commands) == {"Deployment", "Job"}
    with pair() as (prefill, decode, table):
        names = {"prefill:30000": f"127.0.0.1:{prefill.port}", "decode:30000": f"127.0.0.1:{decode.port}"}
        names["prefill:8998"] = f"127.0.0.1:{table.port}"
        for kind, command in commands.items():
            words = [next((w.replace(a, b) for a, b in names.items() if a in w), w) for w in command[1:]]
            if "--handshake" in words:
                continue  # nobody is behind these servers who computes
            assert runner.invoke(app, words).exit_code == 0, kind
            decode.answers["/health"] = (503, b"")
            assert runner.invoke(app, words).exit_code == 1, kind


def test_a_server_that_is_not_one_is_not_followed_elsewhere() -> None:
    with serving({"/server_info": (200, {"disaggregation_mode": "decode"})}) as elsewhere:

        def away(request: BaseHTTPRequestHandler) -> Any:
            request.send_response(307)
            request.send_header("location", f"{elsewhere.url}/server_info")
            request.end_headers()
            return 307, b""

        with pair(decode={"/server_info": away}) as (prefill, decode, _):
            assert bad(look(prefill.url, decode.url)) == [("servers", "error", "PD170")]
        assert elsewhere.asked == []
