"""Names of hosts, pods and users in lines of ssh, kubectl, Slurm, torch.distributed, NCCL, UCX, Mooncake, NIXL and SGLang."""

# ruff: noqa: E501  # lines of logs are as they are

from __future__ import annotations

import pytest

from pdctl.trace.hostforms import WEAK
from pdctl.trace.hostnames import told
from pdctl.trace.redact import Names

SALT = "00" * 16
KNOWN = ["gpu-07", "Login1.hpc.example.org", "alpha"]

GONE = [
    ("ssh: connect to host fd00::5 port 22: No route to host", "fd00|::5"),
    ("debug1: Connecting to bastion [10.0.0.1] port 22.", "bastion|10.0"),
    ("Timeout, server bastion not responding.", "bastion"),
    ("The connection to the C10d store has failed: trainer:29400", "trainer"),
    ("NCCL WARN Net : Call to recv from trainer<47854> failed", "trainer"),
    ("Mooncake: openSegment trainer:12001 failed, peer nic path trainer:15034@mlx5_1", "trainer"),
    ("Lost connection with prefill instance (bootstrap_addr: trainer:8998), 3 requests affected", "trainer"),
    ("gpu-07.cluster.example.com refused", "gpu-07|cluster.example"),
    ("GPU-07: refused; Gpu-07.Cluster.Example.Com", "gpu-07|cluster"),
    ("login1 down, login2.hpc.example.org up", "login|hpc"),
    ("alpha.hpc.example.org", "alpha|hpc"),
    ("ssh: connect to host login-b port 22: Connection refused", "login-b"),
    ("ssh: connect to host bastion port 22: Connection refused", "bastion"),
    ("ssh: Could not resolve hostname Node9: Name or service not known", "node9"),
    ("kex_exchange_identification: Connection closed by 10.4.5.6 port 22", "10.4"),
    ("Connection closed by authenticating user bob gw1 port 22 [preauth]", "gw1"),
    ("bob@bastion: Permission denied (publickey,password).", "bob|bastion"),
    ("bastion: Permission denied (publickey).", "bastion"),
    ("Warning: Permanently added 'node9,10.0.0.9' (ED25519) to the list of known hosts.", "node9|10.0.0.9"),
    ("Warning: Permanently added '[node9]:2222' (ED25519) to the list of known hosts.", "node9"),
    ("The authenticity of host 'bastion (10.1.1.1)' can't be established.", "bastion|10.1"),
    ("Host key for bastion has changed and you have requested strict checking.", "bastion"),
    ("Connection to bastion closed by remote host.", "bastion"),
    ("ssh can't get there: x; ssh alpha true has to work without a question", "alpha"),
    ('Error from server (NotFound): pods "sglang-decode-0" not found', "sglang-decode"),
    (
        'Error from server (Forbidden): pods "p1" is forbidden: User "alice@corp.com" cannot create resource "pods/exec" in API group "" in the namespace "prod"',
        '"p1|alice|corp|"prod',
    ),
    ('User "system:serviceaccount:llm-prod:runner" cannot list', "llm-prod|runner"),
    ('error: context "acme" does not exist', "acme"),
    ('error: no context exists with the name: "acme"', "acme"),
    ("Unable to connect to the server: dial tcp: lookup api.k8s.acme.io on 10.0.0.10:53: no such host", "acme|10.0"),
    ("The connection to the server kube-api:6443 was refused - did you specify", "kube-api"),
    ("not ready: container sglang has not started; kubectl describe pod sglang-decode-3 has more", "decode-3"),
    ("kubectl --context=acme -n serving get pods", "acme|serving"),
    ("kubectl logs -c sglang my-pod-7 --tail=5", "my-pod-7"),
    ("pods of namespace serving with app=x", "serving"),
    ("Successfully assigned serving/llm-0 to worker-a", "serving|llm-0|worker-a"),
    ("pod/llm-decode-7d9f8b6c5d-x2x4z is gone", "7d9f8b"),
    ("deployment.apps/llm-decode restarted", "llm-decode"),
    ("llm-decode-7d9f8b6c5d-x2z4k evicted", "llm-decode"),
    (
        "[W1130 10:00:01.123456789 socket.cpp:460] [c10d] The client socket has failed to connect to [gpu11.cluster]:29500 (errno: 111 - Connection refused).",
        "gpu11",
    ),
    (
        "The IPv6 network addresses of (gpu11, 29500) cannot be retrieved (gai error: -2 - Name or service not known).",
        "gpu11",
    ),
    (
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (node-a, 29500).",
        "node-a",
    ),
    ("MASTER_ADDR=trainer MASTER_PORT=29500", "trainer"),
    ("torchrun --master-addr trainer --rdzv-endpoint=trainer:29400", "trainer"),
    ("  host      : gpu11.cluster.example", "gpu11"),
    ("gpu11:1234:5678 [0] NCCL INFO Bootstrap : Using eth0:10.1.2.3<0>", "gpu11|10.1"),
    ("trainer:1234:5678 [0] NCCL INFO NET/Socket : Using [0]eth0:fe80::ec0d:9a03:78:ab12%eth0<0>", "trainer|fe80|ab12"),
    (
        "I1130 10:00:01.123456  1234 transfer_engine.cpp:52] Transfer Engine starting. Server: gpu11, Metadata: P2PHANDSHAKE, ip_or_host_name: gpu11, rpc_port: 15034",
        "gpu11",
    ),
    ("E1130 rdma_endpoint.cpp:100] Failed to connect to segment gpu11:15034@mlx5_0", "gpu11"),
    ("Transfer failed: Session 10.2.3.4:15034 failed; gpu11:15034 not alive", "10.2|gpu11"),
    ("metadata server http://etcd-a.infra:2379/v2 unreachable", "etcd-a"),
    (
        "[1700000000.123456] [gpu11:12345:0] ucp_worker.c:1234 UCX  ERROR connect(dest_addr=10.1.2.3:1234) failed",
        "gpu11|10.1",
    ),
    ("[trainer:12345:0:12399] Caught signal 11 (Segmentation fault)", "trainer"),
    ("nixl: failed to fetch metadata from peer gpu11:5555", "gpu11"),
    ("HTTPConnectionPool(host='gw', port=8998): Max retries exceeded with url: /route", "'gw'"),
    ("NameResolutionError: Failed to resolve 'gw' ([Errno -2] Name or service not known)", "'gw'"),
    ("Cannot connect to host trainer:30000 ssl:default [Connect call failed ('10.1.2.3', 30000)]", "trainer|10.1"),
    ('INFO:     10.1.2.3:54321 - "POST /generate HTTP/1.1" 200 OK', "10.1"),
    ("Failed to get prefill info from http://trainer:8998/route?engine_rank=0", "trainer"),
    ("bootstrap_addr: 'trainer:8998', room 5", "trainer"),
    ("srun: error: gpu11: task 3: Killed", "gpu11"),
    ("srun: error: gpu[07-11]: tasks 0-1: Exited with exit code 1", "gpu["),
    ("slurmstepd: error: *** STEP 123.0 ON trainer CANCELLED AT 2026-11-30T10:00:00 ***", "trainer"),
    ("decode@[fd00::7]:30000 and decode@fd00::8:30000, tcp://[fd00::9]:7000", "fd00"),
    ("bound to fd00::a:1 and ::ffff:10.1.2.3 and [::ffff:10.1.2.3]:80", "fd00|10.1|ffff"),
    ("2001:db8:0:0:0:0:0:1:30000 lost", "db8"),
    ("MAC 0c:42:a1:b2:c3:d4", "0c:42"),
    ("prefill-gpu-07.log, rank0.gpu-07.log, my_gpu-07_x, gpu-07-decode.log", "gpu-07"),
    ("http://user@proxy.acme.net:3128", "acme"),
    ("the name trainer can't be resolved: x (one of the 3 addresses of farm)", "trainer|farm"),
    ("another process is at its endpoint now: decode dp0 tp0, pid 123 on trainer", "trainer"),
    ("ip-10-1-2-3.ec2.internal and ip-10-1-2-4", "10-1-2"),
    ("10.1.2.3.nip.io, node_10.1.2.3.log", "10.1.2.3"),
    ('{"host": "trainer", "hostname": "gw"}', "trainer|gw"),
    ("nobody listens at tcp://trainer:7311", "trainer"),
    ("Disconnected from trainer port 22", "trainer"),
    ("[2026-11-30 10:00:01] Prefill bootstrap failed for request rank=0 decode_endpoint=trainer:1", "trainer"),
    ("Registered worker with url=grpc://trainer:9000", "trainer"),
    ("Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures", "10.0"),
    ("getaddrinfo for gpu11 failed", "gpu11"),
    ("node trainer-b NotReady; on node gpu11", "trainer-b|gpu11"),
    ("Offending ECDSA key in /home/bob/.ssh/known_hosts:12", "bob"),
    ("store trainer:29400: no connection", "trainer"),
    ("DNS: trainer.serving.svc.cluster.local NXDOMAIN", "trainer|serving"),
    ("x trainer.serving.svc", "trainer"),
    ("connect to host 3f2a9c1b7d4e port 22: Connection refused", "3f2a9c"),
    ("host='trainer', dist_init_addr='trainer:5000', nnodes=2", "trainer"),
    ("router.acme.svc.prod-cluster.local:8000, decode-0.acme.svc.gpu-cluster.local", "acme|router|decode-0"),
    ("gpu7.nvidia.com and n3.acmegithub.com", "gpu7|n3|acme"),
    ("connected to trainer:29500, on gw1:80, with gate:443", "trainer|gw1|gate:"),
    ("kubectl logs --tail=5 -f --since=1h my-pod-7", "my-pod-7"),
    ("listening on [2001::5]:80", "2001"),
    ("connect to gw:80: refused; cannot connect to 'gate:8080'; connecting to edge:22", "gw:|gate|edge"),
    ("curl: (7) Failed to connect to gw port 80 after 0 ms; no answer from gate:80", "gw|gate"),
    ("connect to host gw-münchen port 22; jürgen@büro: Permission denied (publickey).", "gw|nchen|ünch|rgen|ro:"),
    ("http://büro.example.com:80/x; pod/llm-ñandú-0; gw.mu\u0308nchen.example.com", "ro.ex|llm|ñand|gw|nchen"),
    ("Could not resolve hostname 数据库七: x; 连接gpu11.example.com失败", "数据|库|七|gpu11"),
    ("srun: error: größe[07-11]: tasks 0-1", "größe|gr|e["),
]
"""A line, and what may not be in it after, in any capitals."""

STAYS = [
    "localhost 127.0.0.1 ::1 [::1]:80 0.0.0.0 tcp://127.0.0.1:7000 http://localhost:30000/health",
    "prefill decode prefill@lab:one decode@lab:two dp0 decode:tp[0-1] decode dp0 pp0 tp0-6",
    "12:34:56 2026-11-30T12:34:56 [info] [12:34:56] at 12:34:56.789 10:00:01.123456",
    "SGLang 0.5.12.post1, torch 2.9.1, nvidia-cudnn-cu12==9.1.0.70, cuDNN version 9.1.0.70, driver 570.86.15",
    "commit 242ebe9 242ebe9f3c0a1b2c3d4e5f60718293a4b5c6d7e8 sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDUuoXj5p3lVc5cU0A host-deadbeef rid-0123456789abcdef host-deadbeef.01234567",
    "pid 123 on cuda:0 at scheduler.py:1234 in socket.cpp:460 layer-12:4096 float16:4096",
    "Connection closed by remote host; No route to host; Host key verification failed.",
    "kubectl get pods shows it. kubectl describe pod NAME; Name another namespace with -n, or the pods' own labels with -l.",
    "pdctl ranks --endpoint tcp://HOST:PORT --rank decode --store env",
    "torch.distributed.distributed_c10d sglang.srt.disaggregation.decode c10::Error std::vector at::Tensor torch._C._distributed_c10d",
    "0/8 nodes are available: 8 Insufficient nvidia.com/gpu. label leaderworkerset.sigs.k8s.io/name",
    'copy from host to device; node is gone; pods "exec"; host memory is full, server is busy',
    "0000:17:00.0 mlx5_0 eth0 rooms 16851422098683615 slot 3",
    "#running-req: 5, #token: 512, token usage: 0.06, gen throughput (token/s): 12.3",
    "decode: 8 ranks of 2 servers; prefill dp0 tp0: no answer within 2 s",
    "https://github.com/sgl-project/sglang/pull/26394 see docs.pytorch.org",
    "KVPoll.Success decode.transfer prefill.bootstrap documents/check.json stories/story-7.json",
    "Decode transfer failed for request rank=0 decode_req.req.rid=abc decode_req.req.bootstrap_room=5 with exception KVTransferError(bootstrap_room=5)",
    "round 247  tp1  16851422098683615  SUCCESS, reduced SUCCESS, slot holds 0: kept",
    "no-gate (SGLang <= 0.5.12.post1): BROKEN",
    "Does the engine run with pdctl's agent, as this user, with the same PDCTL_RUN_DIR and PDCTL_RECORD_DIR?",
    "ranks of dp-attention differ; world size 16; cp-size 2; peer-to-peer; a non-zero exit",
    'File "scheduler.py", line 1234, in event_loop_overlap_disagg_decode',
    "store 127.0.0.1:29400: no connection; namespace is default",
    "kubectl's list of pods can't be read: x",
    "context 128k, allocate host 64GB, server is 30s behind; node 1.5GiB, host: 64gb",
    "failed at step:1200, with timeout:300, to max_steps:12000, of tokens:4096, on req:77; server timeout:3000 - x",
    "kept = ids[::2] + rows[1::2] - self.f(x)[10::3]",
    "allocatable nvidia.com/gpu: 8",
    "Übergabe läuft: Größe über 10 · 7 → tp0 … – „müde“ wartet at tp1 by 数据, dp0",
]


@pytest.mark.parametrize(("line", "gone"), GONE)
def test_names_go(line: str, gone: str) -> None:
    names = Names(SALT, KNOWN)
    said = names.words(line)
    assert not [name for name in gone.split("|") if name.lower() in said.lower()]
    assert names.words(said) == said


@pytest.mark.parametrize("line", STAYS)
def test_words_that_are_no_names_stay(line: str) -> None:
    assert Names(SALT, KNOWN).words(line) == line


def test_a_name_that_one_line_tells_is_one_in_others() -> None:
    known = told(
        ["ssh: Could not resolve hostname node9: x", "connect to host bastion port 22", "at scheduler.py:1234"]
    )
    assert known == {"node9"}  # the other is a word that may be of a sentence
    names = Names(SALT, known)
    assert names.words("node9.cluster.example: gone, NODE9, node90") == (
        f"{names.host('node9.cluster.example')}: gone, {names.host('node9')}, node90"
    )


def test_the_label_of_a_domain_is_a_name_only_by_its_look() -> None:
    known = told(["GET http://metadata.google.internal/v1 failed; n7-b.example.org is gone"])
    names = Names(SALT, [*known, "findings.example.com"])
    assert names.words("Waiting for metadata of room 7; 2 findings") == "Waiting for metadata of room 7; 2 findings"
    assert names.words("metadata.google.internal, findings.example.com, n7-b") == ", ".join(
        map(names.host, ("metadata.google.internal", "findings.example.com", "n7-b"))
    )


def test_a_known_name_goes_whatever_its_letters() -> None:
    names = Names(SALT, ["büro-pc7", "Øst-1.example.org", "-"])
    said = names.words("connect to host BÜRO-PC7 port 22, log-büro-pc7.txt; bob@øst-1: x, øst-1.example.org, büro-pc70")
    assert "bob" not in said
    assert said.count(names.host("büro-pc7")) == 2
    assert said.count(names.host("øst-1")) == 2
    assert said.endswith("büro-pc70")


@pytest.mark.parametrize("named", ["decode", "prefill", "localhost", "lab", "7", ""])
def test_a_host_with_a_name_of_pdctls_own_takes_no_word(named: str) -> None:
    text = "decode@lab:one prefill dp0 tp7 on localhost, 7 rooms"
    assert Names(SALT, [named]).words(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "a-",
        "a.",
        "a@",
        ":",
        "0:",
        "[",
        "a[1-9] ",
        "kubectl -",
        'host="',
        "a_host",
        "--namespace ",
        "pod/",
        "a:1:2 ",
        "1.2.3.4",
    ],
)
def test_a_text_takes_time_by_its_length(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    names = Names(SALT, [f"gpu-{number:04}" for number in range(4096)])
    assert names.words(text) is not None
    told([text])


def test_options_are_read_one_way() -> None:
    text = f"kubectl logs{' --a' * 12};" * 500_000  # minutes, where each may be read two ways
    assert [pattern.search(text) for words, pattern in WEAK if "kubectl" in words] == [None, None]


def test_names_of_many_parts_cost_a_line_no_more() -> None:
    names = Names(SALT, [f"{'b-' * parts}c1" for parts in range(1, 126)])  # tried one by one they take minutes
    for line in ("a-" * 1_000_000, "b-" * 50_000):
        assert names.words(line) == line
    assert names.words("x-b-b-b-c1-y") == f"x-{names.host('b-b-b-c1')}-y"
