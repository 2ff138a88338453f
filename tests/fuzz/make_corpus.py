#!/usr/bin/env python3
"""Writes first inputs of fuzz targets, corpus/<target>/, where no other files of the tree serve.

    tests/fuzz/make_corpus.py

Needs protoc and Python's yaml. What fuzzers find is added to the same folders by hand, as
regression-*.
"""

import hashlib
import json
import pathlib
import re
import struct
import subprocess

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORPUS = HERE / "corpus"

SPEC = 'name: "tiny" data { train: "/data/a.txt" } '
ID = 'id: "tiny-aaaaa"'
PROFILE = ('profile { worker_id: "w" isa: "avx2" cores: 4 device: "cpu" memory_bytes: 8589934592 '
           'gemm { precision: "fp32" m: 256 n: 256 k: 256 threads: 1 flops_per_second: 1e11 } }')
CLUSTER = f'cluster {{ workers {{ {PROFILE[len("profile {"):]} }}'
REGISTER = (f'register {{ worker_id: "w" incarnation: "i" version: "0" api_level: API {PROFILE} '
            'machine: "m" running { job_id: "tiny-aaaaa" epoch: 1 } }')
WORKER_SAYS = {
    "heartbeat": 'heartbeat { sequence: 1 running { job_id: "j" epoch: 2 progress { step: 3 loss: 1.5 } '
                 'activity: "training" silent_seconds: 0.5 rank_states: "rank 0 sleeping" } draining: true '
                 'broken_devices { index: 1 why: "gone" } }',
    "attempt": 'attempt { job_id: "j" epoch: 1 state: ATTEMPT_FAILED reason: OUT_OF_MEMORY message: "m" '
               'rank: 1 signal: 9 summary_json: "{}" }',
    "logs": 'logs { job_id: "j" epoch: 1 first_sequence: 1 lines { rank: 0 text: "hello" time: 1.0 } }',
    "checkpoint": 'checkpoint { checkpoint { job_id: "j" step: 5 epoch: 1 path: "/runs/j" bytes: 7 '
                  'verified: true } resume_step: 3 }',
    "set": 'store { request_id: 1 job_id: "j" epoch: 1 set { key: "k" value: "v" } }',
    "get": 'store { request_id: 1 job_id: "j" epoch: 1 get { key: "k" timeout_seconds: 0.1 } }',
    "profile": 'profile { request_id: 1 report_json: "{}" }',
    "link": 'link { request_id: 1 port: 5 send_bytes_per_second: 1e9 round_trip_seconds: 1e-4 }',
    "health": 'health { request_id: 1 device: -1 flops_per_second: 1e11 }',
}
# By call; one that is not here gets an empty message and one with an id.
CALLS = {
    "SubmitJob": f'spec {{ {SPEC} }} client_request_id: "r"',
    "ListJobs": 'states: QUEUED page_size: 3 page_token: "7"',
    "StreamLogs": f'{ID} after_sequence: 3 follow: true rank: 1 tail: 5',
    "PlanJob": f'spec {{ {SPEC} }} {CLUSTER} top: 2',
    "ExplainPlan": f'spec {{ {SPEC} }} {CLUSTER} query {{ top: 1 frontier: true measure: 1 }}',
    "CalibratePlans": 'dry_run: true',
    "ListEvents": 'job_id: "tiny"',
    "ListCheckpoints": 'job_id: "tiny"',
    "ForgetWorker": 'worker_id: "w"',
    "SetWorkerScheduling": 'worker_id: "w" scheduling: CORDONED why: "because"',
    "UpdateJob": f'{ID} priority: 5 queue: "q"',
    "DeleteJob": f'{ID} delete_run_dir: true',
    "ProfileJob": f'{ID} steps: 3',
}
# Roles that must not make the call.
TOO_LOW = {"SubmitJob": "viewer", "ForgetWorker": "user", "ListAuditRecords": "operator"}


def encode(message, text):
    return subprocess.run(
        ["protoc", f"-I{ROOT}/proto", f"--encode=weft.v1.{message}", "weft/v1/coordinator.proto",
         "weft/v1/worker.proto"], input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def write(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def framed(*messages):
    return b"".join(struct.pack("<H", len(m)) + m for m in messages)


def methods():
    """Each call with its request, from the text of the .proto."""
    for name in ("coordinator", "worker"):
        text = (ROOT / f"proto/weft/v1/{name}.proto").read_text()
        yield from re.findall(r"rpc (\w+)\((?:stream )?(\w+)\)", text)


def api_level():
    return re.search(r"kApiLevel = (\d+)", (ROOT / "common/version.h.in").read_text()).group(1)


def write_messages():
    register = encode("WorkerMessage", REGISTER.replace("API", api_level()))
    said = {name: encode("WorkerMessage", text) for name, text in WORKER_SAYS.items()}
    for call, request in methods():
        if call == "Attach":
            write("rpc", "Attach", b"Attach\n" + framed(register, *said.values()))
            write("rpc", "Attach-unregistered", b"Attach\n" + framed(said["heartbeat"]))
            continue
        text = CALLS.get(call, "")
        if not text and "string id = 1" in fields(request):
            text = ID
        message = framed(encode(request, text))
        write("rpc", call, call.encode() + b"\n" + message)
        if role := TOO_LOW.get(call):
            write("rpc", f"{call}-{role}", f"{call} {role}\n".encode() + message)
    write("messages", "register", b"WorkerMessage\n" + register)
    for name, message in said.items():
        write("messages", name, b"WorkerMessage\n" + message)
    write("messages", "JobSpec", b"JobSpec\n" + encode("JobSpec", SPEC))
    write("messages", "ClusterProfile", b"ClusterProfile\n" + encode(
        "ClusterProfile", CLUSTER[len("cluster {"):-1]))
    write("messages", "PlanQuery", b"PlanQuery\n" + encode("PlanQuery", "top: 3 frontier: true"))


def fields(message):
    text = (ROOT / "proto/weft/v1/coordinator.proto").read_text()
    begin = text.find(f"message {message} {{")
    return text[begin:text.find("}", begin)]


def write_jobs():
    for path in sorted((ROOT / "docs/examples").glob("*.yaml")):
        job = json.dumps(yaml.safe_load(path.read_bytes()))
        write("json_job", path.stem + ".json", job.encode())
    file = {"name": "rank-00000.safetensors", "rank": 0, "bytes": 8, "xxh3_128": "0" * 32}
    manifest = {"format_version": 1, "step": 5, "epoch": 1, "files": [file], "recent_losses": [1.5],
                "job": json.loads(job), "plan": {"rank_workers": ["a"], "threads_per_rank": 1}}
    write("manifest", "content.json", json.dumps(manifest).encode())


def write_adapters():
    """Small ones of each method, of a gpt2 and of a llama, from the fixtures of tests/parity."""
    data = ROOT / "tests/parity/testdata"
    cases = {"gpt2": ["gpt2/bias", "gpt2/ln_tuning", "gpt2/pissa", "gpt2/prefix", "gpt2/tokens_alone",
                      "peft_0_8/gpt2_prompt"],
             "llama": [f"mistral/{method}" for method in
                       ("adalora", "dora", "embedding", "ia3", "loha", "lokr", "miss", "oft", "olora",
                        "tokens", "vera")]}
    for family, names in cases.items():
        for name in names:
            folder = data / name
            folder = folder / "start" if (folder / "start").exists() else folder
            config = json.loads((folder / "adapter_config.json").read_text())
            write("adapter", name.replace("/", "-"), family.encode() + b"\n" + json.dumps(config).encode()
                  + b"\0" + (folder / "adapter_model.safetensors").read_bytes())


def write_requests():
    """Of the pages of a daemon: a request of each form, and what is none."""
    headers = b"\r\nHost: localhost:7071\r\nAccept: text/plain\r\n\r\n"
    for name, content in {
            "get": b"GET /metrics HTTP/1.1" + headers,
            "head": b"HEAD /metrics?name=x HTTP/1.0" + headers,
            "silent": b"GET /healthz HTTP/1.1" + headers,
            "unknown": b"GET /%2e%2e/etc/passwd HTTP/1.1" + headers,
            "post": b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
            "two": 2 * (b"GET /metrics HTTP/1.1" + headers),
            "cut": b"GET /metrics HTTP/1.1\r\nHost: ",
            "bare": b"GET /metrics\r\n\r\n",
            "noise": bytes(range(256)) + b"\r\n\r\n",
            "long": b"GET /" + 9000 * b"a" + b" HTTP/1.1" + headers}.items():
        write("http", name, content)


def write_people():
    token = hashlib.sha256(b"weft_token").hexdigest()
    ann = {"name": "ann", "role": "admin", "token_sha256": token, "queues": ["research"]}
    bob = {"name": "bob", "role": "viewer"}
    write("people_yaml", "both.yaml", yaml.safe_dump({"people": [ann, bob]}).encode())
    write("people_yaml", "none.yaml", b"people: []\n")
    write("people_yaml", "twice.yaml", yaml.safe_dump({"people": [bob, bob]}).encode())
    write("people_yaml", "same-token.json", json.dumps({"people": [ann, {**ann, "name": "eve"}]}).encode())


def main():
    write_messages()
    write_jobs()
    write_adapters()
    write_requests()
    write_people()


if __name__ == "__main__":
    main()
