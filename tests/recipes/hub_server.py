"""A small Hub on loopback: what the real client needs to create, upload, commit, read and propose.

Large files go through the LFS protocol (single and multipart); everything is kept in memory, every
request is logged, and failures can be ordered.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_loopbacktokenthatnobodymaysee"  # noqa: S105


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    sent: int
    range: str | None


@dataclass
class Fault:
    pattern: str
    status: int
    times: int
    headers: dict = field(default_factory=dict)
    after: bool = False


@dataclass
class Repo:
    private: bool = False
    refs: dict = field(default_factory=dict)
    commits: dict = field(default_factory=dict)
    messages: list = field(default_factory=list)
    pull_requests: int = 0

    def add(self, ref, tree, message=""):
        sha = git_sha1(f"{len(self.commits)}{message}{sorted(tree)}".encode())
        self.commits[sha] = tree
        self.refs[ref] = sha
        self.messages.append(message)
        return sha

    def resolve(self, revision):
        return self.refs.get(revision, revision if revision in self.commits else None)


class Hub:
    """The state of the server, for tests to arrange and to look at."""

    def __init__(self, url):
        self.url = url
        # Another host, as the real Hub's storage is: the client handles such redirects differently.
        self.storage = url.replace("127.0.0.1", "localhost")
        self.repos = {}
        self.large = {}
        self.parts = {}
        self.log = []
        self.faults = []
        self.actions = []
        self.multipart_over = 1 << 30
        self.ignored = set()
        self.tamper = None
        self.lock = threading.RLock()

    def fail(self, pattern, status, times=10**6, headers=None, *, after=False):
        """Answer requests whose 'METHOD path' matches with a status (0: hang up), so many times.

        `after` serves the request first, so that only its answer is lost.
        """
        self.faults.append(Fault(pattern, status, times, headers or {}, after))

    def before(self, pattern, action):
        """Do something once, just before such a request is served."""
        self.actions.append((pattern, action))

    def make(self, repo_id, files=(), private=False):
        """A repository with files, as if somebody had pushed them before."""
        repo = self.repos[repo_id] = Repo(private)
        tree = {name: self.store(name, content) for name, content in dict(files).items()}
        repo.add("main", tree, "initial commit")
        return repo

    def store(self, name, content):
        if is_large(name):
            oid = hashlib.sha256(content).hexdigest()
            self.large[oid] = content
            return ("lfs", oid)
        return ("regular", content)

    def files(self, repo_id, revision="main"):
        """Name to bytes at a revision."""
        repo = self.repos[repo_id]
        return {n: self.content(e) for n, e in repo.commits[repo.resolve(revision)].items()}

    def content(self, entry):
        return self.large[entry[1]] if entry[0] == "lfs" else entry[1]

    def requests(self, pattern):
        return [r for r in self.log if re.search(pattern, f"{r.method} {r.path}")]


def is_large(name):
    return name.endswith((".safetensors", ".bin", ".png"))


def git_sha1(raw):
    return hashlib.sha1(b"blob %d\0" % len(raw) + raw, usedforsecurity=False).hexdigest()


def described(hub, name, entry):
    raw = hub.content(entry)
    if entry[0] == "regular":
        return {"path": name, "size": len(raw), "oid": git_sha1(raw), "type": "file"}
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{entry[1]}\nsize {len(raw)}\n"
    )
    lfs = {"oid": entry[1], "sha256": entry[1], "size": len(raw), "pointerSize": len(pointer)}
    return {
        "path": name,
        "size": len(raw),
        "oid": git_sha1(pointer.encode()),
        "lfs": lfs,
        "type": "file",
    }


class HubError(Exception):
    def __init__(self, status, code="", message=""):
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


MODEL = r"/api/models/([^/]+/[^/]+)"
ROUTES = [
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate_yaml"),
    ("GET", MODEL + r"(?:/revision/([^/]+))?", "info"),
    ("GET", MODEL + r"/tree/([^/]+)(?:/.*)?", "tree"),
    ("POST", MODEL + r"/paths-info/([^/]+)", "paths_info"),
    ("POST", MODEL + r"/preupload/([^/]+)", "preupload"),
    ("POST", MODEL + r"/commit/([^/]+)", "commit"),
    ("POST", MODEL + r"/branch/([^/]+)", "branch"),
    ("POST", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/lfs/(\w+)", "put"),
    ("PUT", r"/lfs/(\w+)/part/(\d+)", "put_part"),
    ("POST", r"/lfs/(\w+)/complete", "complete"),
    ("POST", r"/lfs/(\w+)/verify", "verify"),
    ("HEAD|GET", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
    ("HEAD|GET", r"/cdn/(\w+)", "cdn"),
]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_):
        pass

    @property
    def hub(self):
        return self.server.hub

    def handle_one(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = self.read_chunks()
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        self.sent = 0
        fault = self.fault(f"{self.command} {url.path}")
        if fault and not fault.after:
            return self.break_off(fault)
        try:
            with self.hub.lock:
                self.act(f"{self.command} {url.path}")
                status, headers, payload = self.route(url.path)
        except HubError as error:
            status, payload = error.status, json.dumps({"error": error.message}).encode()
            headers = {"X-Error-Code": error.code, "X-Error-Message": error.message}
        self.note(url.path, payload)
        if fault:
            return self.break_off(fault)
        return self.answer(status, headers, payload)

    do_GET = do_HEAD = do_POST = do_PUT = handle_one  # noqa: N815

    def fault(self, line):
        with self.hub.lock:
            for fault in self.hub.faults:
                if fault.times > 0 and re.search(fault.pattern, line):
                    fault.times -= 1
                    return fault
        return None

    def act(self, line):
        for item in [item for item in self.hub.actions if re.search(item[0], line)]:
            self.hub.actions.remove(item)
            item[1]()

    def break_off(self, fault):
        self.note(self.path, b"")
        if fault.status == 0:
            self.close_connection = True
            return
        self.answer(fault.status, fault.headers, b'{"error": "ordered by the test"}')

    def note(self, path, payload):
        with self.hub.lock:
            sent = 0 if self.command == "HEAD" else len(payload)
            line = Request(self.command, unquote(path), sent, self.headers.get("Range"))
            self.hub.log.append(line)

    def read_chunks(self):
        body = b""
        while size := int(self.rfile.readline().strip(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self, status, headers, payload):
        self.send_response(status)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)

    def route(self, path):
        for methods, pattern, name in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and re.fullmatch(methods, self.command):
                self.authorize(name)
                arguments = [unquote(part) if part else part for part in match.groups()]
                result = getattr(self, name)(*arguments)
                if isinstance(result, tuple):
                    return result
                return 200, {"Content-Type": "application/json"}, json.dumps(result).encode()
        raise HubError(404, "", f"the test's Hub has no route for {self.command} {path}")

    def authorize(self, name):
        given = self.headers.get("Authorization")
        writes = name in ("create", "commit", "preupload", "batch", "branch")
        if (writes and given is None) or given not in (None, f"Bearer {TOKEN}"):
            raise HubError(401, "", "Invalid credentials in Authorization header")
        if name in ("put", "put_part", "cdn") and given is not None:
            raise HubError(400, "", "a token was sent to the storage")

    def json(self):
        return json.loads(self.body)

    def repo(self, repo_id):
        repo = self.hub.repos.get(repo_id)
        if repo is None:
            raise HubError(404, "RepoNotFound", "Repository not found")
        return repo

    def at(self, repo_id, revision):
        repo = self.repo(repo_id)
        sha = repo.resolve(revision or "main")
        if sha is None:
            raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha, repo.commits[sha]

    def create(self):
        asked = self.json()
        repo_id = f"{asked['organization']}/{asked['name']}"
        url = f"{self.hub.url}/{repo_id}"
        if repo_id in self.hub.repos:
            body = {"error": "You already created this model repo", "url": url}
            return 409, {}, json.dumps(body).encode()
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.hub.make(repo_id, {".gitattributes": b"*.safetensors filter=lfs\n"}, private)
        return {"url": url}

    def validate_yaml(self):
        if "not-a-license" in self.json()["content"]:
            body = {"errors": [{"message": '"license" must be a known one'}], "warnings": []}
            return 400, {}, json.dumps(body).encode()
        return {"errors": [], "warnings": []}

    def info(self, repo_id, revision):
        sha, tree = self.at(repo_id, revision)
        siblings = []
        for name, entry in tree.items():
            file = {"rfilename": name}
            if "blobs" in self.query:
                facts = described(self.hub, name, entry)
                file |= {"size": facts["size"], "blobId": facts["oid"]}
                file |= {"lfs": facts["lfs"]} if "lfs" in facts else {}
            siblings.append(file)
        private = self.repo(repo_id).private
        return {"id": repo_id, "sha": sha, "private": private, "siblings": siblings}

    def tree(self, repo_id, revision):
        _, tree = self.at(repo_id, revision)
        return [described(self.hub, name, entry) for name, entry in tree.items()]

    def paths_info(self, repo_id, revision):
        _, tree = self.at(repo_id, revision)
        fields = parse_qs(self.body.decode())
        return [described(self.hub, n, e) for n, e in tree.items() if n in fields["paths"]]

    def preupload(self, repo_id, revision):
        _, tree = self.at(repo_id, revision)
        return {"files": [self.mode(file, tree) for file in self.json()["files"]]}

    def mode(self, file, tree):
        entry, oid = tree.get(file["path"]), None
        if entry is not None:
            oid = entry[1] if entry[0] == "lfs" else git_sha1(entry[1])
        return {
            "path": file["path"],
            "uploadMode": "lfs" if is_large(file["path"]) else "regular",
            "shouldIgnore": file["path"] in self.hub.ignored,
            "oid": oid,
        }

    def batch(self, _repo_id):
        return {"transfer": "basic", "objects": [self.upload(o) for o in self.json()["objects"]]}

    def upload(self, asked):
        oid, size = asked["oid"], asked["size"]
        if oid in self.hub.large:
            return {"oid": oid, "size": size}
        base = f"{self.hub.url}/lfs/{oid}"
        actions = {"upload": {"href": base}, "verify": {"href": f"{base}/verify"}}
        if size > self.hub.multipart_over:
            chunk = self.hub.multipart_over
            parts = range(1, -(-size // chunk) + 1)
            header = {str(n): f"{base}/part/{n}" for n in parts} | {"chunk_size": str(chunk)}
            actions["upload"] = {"href": f"{base}/complete", "header": header}
        return {"oid": oid, "size": size, "actions": actions}

    def put(self, oid):
        self.keep(oid, self.body)
        return {}

    def keep(self, oid, raw):
        if hashlib.sha256(raw).hexdigest() != oid:
            raise HubError(400, "", "the content is not what its oid says")
        self.hub.large[oid] = raw

    def put_part(self, oid, number):
        self.hub.parts[oid, int(number)] = self.body
        return 200, {"ETag": git_sha1(self.body)}, b""

    def complete(self, oid):
        numbers = [part["partNumber"] for part in self.json()["parts"]]
        self.keep(oid, b"".join(self.hub.parts[oid, number] for number in numbers))
        return {}

    def verify(self, oid):
        if len(self.hub.large.get(oid, b"")) != self.json()["size"]:
            raise HubError(400, "", "not here")
        return {}

    def branch(self, repo_id, name):
        repo = self.repo(repo_id)
        if name in repo.refs:
            raise HubError(409, "", "Reference already exists")
        start = self.json().get("startingPoint", "main")
        repo.refs[name] = repo.refs[start]
        return {}

    def commit(self, repo_id, revision):
        repo, (sha, tree) = self.repo(repo_id), self.at(repo_id, revision)
        lines = [json.loads(line) for line in self.body.splitlines()]
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, sha):
            raise HubError(412, "", "A commit has happened since. Please refresh and try again.")
        tree = dict(tree)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                tree[value["path"]] = ("regular", base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.large:
                    raise HubError(400, "", "an LFS object is missing")
                tree[value["path"]] = ("lfs", value["oid"])
        if self.hub.tamper:
            self.hub.tamper(tree)
        url = f"{self.hub.url}/{repo_id}"
        if "create_pr" not in self.query:
            oid = repo.add(revision, tree, header["summary"])
            return {"success": True, "commitOid": oid, "commitUrl": f"{url}/commit/{oid}"}
        repo.pull_requests += 1
        oid = repo.add(f"refs/pr/{repo.pull_requests}", tree, header["summary"])
        request = f"{url}/discussions/{repo.pull_requests}"
        return {"commitOid": oid, "commitUrl": f"{url}/commit/{oid}", "pullRequestUrl": request}

    def resolve(self, repo_id, revision, name):
        sha, tree = self.at(repo_id, revision)
        if name not in tree:
            raise HubError(404, "EntryNotFound", "Entry not found")
        facts = described(self.hub, name, tree[name])
        headers = {"X-Repo-Commit": sha, "ETag": f'"{facts["oid"]}"'}
        if "lfs" in facts:
            headers |= {
                "X-Linked-ETag": f'"{facts["lfs"]["oid"]}"',
                "X-Linked-Size": str(facts["size"]),
                "Location": f"{self.hub.storage}/cdn/{facts['lfs']['oid']}",
            }
            return 302, headers, b""
        return self.ranged(self.hub.content(tree[name]), headers)

    def cdn(self, oid):
        return self.ranged(self.hub.large[oid], {"ETag": f'"{oid}"'})

    def ranged(self, raw, headers):
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        headers |= {"Accept-Ranges": "bytes"}
        if asked is None:
            return 200, headers | {"Content-Length": str(len(raw))}, raw
        start = int(asked[1])
        part = raw[start : int(asked[2]) + 1 if asked[2] else len(raw)]
        span = f"bytes {start}-{start + len(part) - 1}/{len(raw)}"
        return 206, headers | {"Content-Range": span, "Content-Length": str(len(part))}, part


class Server(ThreadingHTTPServer):
    """The server; `hub` is its state, to be replaced by each test."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.hub = Hub(self.url)

    def handle_error(self, *_):
        """A client that left is no matter."""
