"""No name of the site is in any byte of a bundle or of what is made of it, wherever it was: recordings, reasons, logs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from pdctl.recording import format as f
from pdctl.trace import manifest
from pdctl.trace.reader import open_trace
from pdctl.trace.writer import Member, member_of, write_trace
from tests.support.labs import Labs

pytestmark = pytest.mark.system
HANG = Path(__file__).parents[1] / "data" / "sglang-0.5.12.post1-c1.pdtrace"
HOST, AWAY = "Quartz-07", "quartz-08.lab-zirkon.example.org"
PLANTED = ("quartz", "zirkon", "bastion-kappa", "omicron", "tango-decode", "sierra", "10.77.", "fd00:77", "mallory")
LOG = f"""\
server_args=ServerArgs(host='{HOST}', dist_init_addr='quartz-07.lab-zirkon.example.org:5000', nnodes=2)
[W socket.cpp:460] [c10d] The client socket has failed to connect to [{AWAY}]:29500 (errno: 111 - Connection refused).
{HOST.lower()}:12:34 [0] NCCL INFO Bootstrap : Using eth0:10.77.0.1<0> and ib0:fd00:77::1%ib0<0>
Failed to get prefill info from http://omicron:8998/route and ::ffff:10.77.0.2 on QUARTZ-08
mallory@bastion-kappa: Permission denied (publickey).
"""


def planted(file: Path) -> None:
    """Write a recorded hang, of hosts with these names, as a trace with names."""
    members = []
    with open_trace(HANG) as trace:
        for number, rank in enumerate(trace.manifest.ranks):
            host = (HOST, AWAY)[number % 2]
            at = f"decode@{('[fd00:77::1]', '10.77.0.3')[number % 2]}:30000"
            who = msgspec.structs.replace(
                rank.identity, host=host, service=at, instance=f"{at}/1", world=f"{at}/w", groups=()
            )
            raw = msgspec.json.encode(who)
            data = bytearray((trace.folder / Path(rank.member).name).read_bytes())
            data[f.IDENTITY_OFFSET : f.HEADER_SIZE] = raw.ljust(f.HEADER_SIZE - f.IDENTITY_OFFSET, b"\0")
            f.IDENTITY_FIELDS.pack_into(data, f.IDENTITY_OFFSET_FIELDS, len(raw), crc32(raw))
            members.append(member_of(bytes(data)))
        lost = msgspec.structs.replace(who, host="", service="pod/tango-decode-3", role="unknown", tp=-1, dp=-1, pp=-1)
    why = "ssh: connect to host omicron port 22: No route; kubectl describe pod tango-decode-3 -n sierra has more"
    members.append(Member(manifest.TraceRank(rank=lost.label, state="live", kept="missing", identity=lost, reason=why)))
    write_trace(
        file, members, manifest.new("test", problems=("bastion-kappa.lab-zirkon.example.org: quartz-08 is gone",))
    )


def told(data: bytes) -> list[str]:
    low = data.lower()
    return [name for name in PLANTED if name.encode() in low]


def test_no_planted_name_is_in_any_byte(labs: Labs) -> None:
    source, file, log = (labs.folder / name for name in ("in.pdtrace", "ticket.zip", "prefill-quartz-07.log"))
    planted(source)
    log.write_text(LOG)
    with zipfile.ZipFile(source) as archive:
        assert set(told(b"".join(map(archive.read, archive.namelist())) + LOG.encode())) == set(PLANTED)

    labs.cli("bundle", "--from", source, "-o", file, "--logs", log, code=3)
    assert told(file.read_bytes()) == []
    with zipfile.ZipFile(file) as archive:
        assert [name for name in archive.namelist() if told(archive.read(name) + name.encode())] == []
        assert b"Permission denied (publickey)" in archive.read("logs/1.log")
    for which in ("--markdown", "--upstream"):
        text = labs.cli("report", file, which).stdout
        assert text.startswith(("**pdctl: error PD", "# [Bug]"))
        assert told(text.encode()) == []
    assert told(labs.cli("report", source, "--upstream").stdout.encode()) == []  # of a file with names
