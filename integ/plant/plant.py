"""Plants the bugs of bugs.toml in a copy of the sources, and runs the tests of each with that bug alone switched on.

All bugs are planted at once, each behind a switch that reads BRUPOP_PLANTED, so that everything is compiled once. The
programs of the copy run in the tests: the kubelet stand-in of the copy passes the variable on to the pods. Each test runs
without a bug first, when it has to pass, and then with each of its bugs. A test that takes several times as long with a bug
as without it is ended, and counts as failed.
"""

import argparse
import concurrent.futures
import filecmp
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
FOLDER = TARGET / "plant"
SOURCE = FOLDER / "source"
# The programs of the copy; those of the present sources stay where they are.
OUT = FOLDER / "out"
# Another version is another package to cargo: its outputs stand beside those of the present one.
VERSION = "0.3.0"
# The least number of bugs in the list.
LEAST = 40
# The longest time of a test without a bug, in seconds.
LONGEST = 900
LEVELS = ["unit", "controller", "cluster"]
NOT_COPIED = {"target", ".git"}

SWITCH = '''
/// Returns whether the planted bug of this name is switched on.
pub fn planted(name: &str) -> bool {
    static PLANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    PLANTED.get_or_init(|| std::env::var("BRUPOP_PLANTED").ok()).as_deref() == Some(name)
}
'''
# What starts processes with an environment of its own has to pass the variable on, and to start the programs of the copy.
PASSED_ON = '.env_clear().envs(std::env::var_os("BRUPOP_PLANTED").map(|name| ("BRUPOP_PLANTED", name)))'
STARTS_PROCESSES = ["integ/src/kubelet/process.rs", "agent/tests/update/bench/mod.rs", "agent/tests/update/main.rs"]


def fail(message):
    sys.exit(f"make: {message}")


def read_bugs():
    with open(HERE / "bugs.toml", "rb") as file:
        return tomllib.load(file)


def sources_of_binary(binary):
    """Returns the files that a path of a test in this binary may be in, with the root of its modules."""
    if binary.endswith("/src"):
        return ROOT / binary, "lib.rs" if (ROOT / binary / "lib.rs").is_file() else "main.rs"
    for tests in [*ROOT.glob("*/tests"), *ROOT.glob("*/*/tests")]:
        if (tests / binary / "main.rs").is_file():
            return tests / binary, "main.rs"
        if (tests / f"{binary}.rs").is_file():
            return tests, f"{binary}.rs"
    return None


def is_fault_plan(name):
    """Returns whether this names a fault at a write of the controller; such tests have no function of their own."""
    folder = ROOT / "integ/tests/controller"
    words = [re.sub(r"[^A-Za-z0-9]", "_", write.removesuffix(" ?")) for write in (folder / "faults/writes.txt").read_text().splitlines()]
    faults = re.findall(r'Self::\w+ => "(\w+)"', (folder / "bed/faults.rs").read_text())
    return name in {f"faults::at::{write}::{fault}" for write in words for fault in faults}


def exists(test):
    binary, name = test.split(" ", 1)
    if binary == "controller" and is_fault_plan(name):
        return True
    found = sources_of_binary(binary)
    if not found:
        return False
    folder, root = found
    *modules, function = name.split("::")
    defined = re.compile(rf"\bfn {re.escape(function)}\s*[(<]")
    for depth in range(len(modules), -1, -1):
        base = folder.joinpath(*modules[:depth])
        candidates = [base.with_suffix(".rs"), base / "mod.rs"] if depth else [folder / root]
        if any(path.is_file() and defined.search(path.read_text()) for path in candidates):
            return True
    return False


def check(bugs):
    """Returns what is wrong with the list, each as a sentence."""
    wrong = []
    if len(bugs) < LEAST:
        wrong.append(f"there are {len(bugs)} bugs, and {LEAST} are required")
    for name, bug in bugs.items():
        missing = [field for field in ("does", "file", "find", "plant", "level", "tests") if not bug.get(field)]
        if missing:
            wrong.append(f"{name} has no {', '.join(missing)}")
            continue
        if bug["level"] not in LEVELS:
            wrong.append(f"{name}: the level is one of {', '.join(LEVELS)}")
        if "PLANTED" not in bug["plant"]:
            wrong.append(f"{name}: the replacement has no PLANTED")
        file = ROOT / bug["file"]
        times = file.read_text().count(bug["find"]) if file.is_file() else 0
        if times != 1:
            wrong.append(f"{name} is stale: {bug['file']} has its text {times} times, and not once: {bug['find'].strip()}")
        for test in bug["tests"]:
            if not exists(test):
                wrong.append(f"{name} is stale: there is no test {test}")
    return wrong or overlaps(bugs)


def overlaps(bugs):
    wrong, places = [], {}
    for name, bug in bugs.items():
        at = (ROOT / bug["file"]).read_text().index(bug["find"])
        places.setdefault(bug["file"], []).append((at, at + len(bug["find"]), name))
    for file, found in places.items():
        found.sort()
        wrong += [f"{a[2]} and {b[2]} change the same text of {file}" for a, b in zip(found, found[1:]) if b[0] < a[1]]
    return wrong


def plant(bugs):
    """Writes the copy of the sources. A file that is the same keeps its time, so that only the changed ones are compiled."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fresh.", dir=FOLDER) as fresh:
        fresh = Path(fresh)
        ignore = lambda folder, names: NOT_COPIED & set(names) if Path(folder) == ROOT else set()
        shutil.copytree(ROOT, fresh, ignore=ignore, symlinks=True, dirs_exist_ok=True)
        files = {}
        for name, bug in bugs.items():
            home = "crate" if bug["file"].startswith("models/") else "models"
            files.setdefault(bug["file"], []).append((bug["find"], bug["plant"].replace("PLANTED", f'{home}::planted("{name}")')))
        for file, changes in files.items():
            text = (fresh / file).read_text()
            for index, (find, _) in enumerate(changes):
                text = text.replace(find, f"\0{index}\0")
            for index, (_, planted) in enumerate(changes):
                text = text.replace(f"\0{index}\0", planted)
            (fresh / file).write_text(text)
        with open(fresh / "models/src/lib.rs", "a") as file:
            file.write(SWITCH)
        for file in STARTS_PROCESSES:
            text = (fresh / file).read_text()
            if ".env_clear()" not in text:
                fail(f"{file} starts no process with an environment of its own any more: mend integ/plant/plant.py")
            text = text.replace('env!("CARGO_BIN_EXE_brupop-agent")', 'std::env::var_os("BRUPOP_AGENT_BIN").unwrap()')
            (fresh / file).write_text(text.replace(".env_clear()", PASSED_ON))
        manifest = fresh / "Cargo.toml"
        manifest.write_text(re.sub(r'(?m)^version = ".*"$', f'version = "{VERSION}"', manifest.read_text(), count=1))
        cargo(["update", "--workspace", "--offline", "--quiet"], manifest, check=True)

        SOURCE.mkdir(exist_ok=True)
        for path in [path for path in SOURCE.rglob("*") if path.is_file() and not (fresh / path.relative_to(SOURCE)).is_file()]:
            path.unlink()
        for path in [path for path in fresh.rglob("*") if path.is_file()]:
            kept = SOURCE / path.relative_to(fresh)
            if not (kept.is_file() and filecmp.cmp(path, kept, shallow=False)):
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, kept)


def cargo(arguments, manifest, **options):
    command = [os.environ.get("CARGO", "cargo"), *arguments, "--manifest-path", str(manifest)]
    environment = os.environ | {"CARGO_TARGET_DIR": str(OUT), "CARGO_BUILD_BUILD_DIR": str(TARGET)}
    for name in ("RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS"):
        environment.pop(name, None)
    return subprocess.run(command, env=environment, **options)


def build(tests):
    """Builds programs and tests, and returns the programs of the tests with their folders, by name."""
    manifest = SOURCE / "Cargo.toml"
    # All packages: another choice selects other features, and builds every dependency once more.
    if cargo(["build", "--workspace", "--locked", "--bins"], manifest).returncode:
        fail("the planted sources cannot be compiled: an entry of integ/plant/bugs.toml does not fit them")
    binaries = {test.split(" ")[0] for test in tests}
    chosen = [option for binary in sorted(binaries) if not binary.endswith("/src") for option in ("--test", binary)]
    chosen += ["--lib", "--bins"] if any(binary.endswith("/src") for binary in binaries) else []
    built = cargo(["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics", *chosen],
                  manifest, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        fail(f"the tests of the planted sources cannot be compiled (cargo ended with {built.returncode})")
    found = {}
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message.get("executable") or not message["profile"]["test"]:
            continue
        target, package = message["target"], Path(message["manifest_path"]).parent
        # The unit tests of a package are those of its library, if it has one.
        name = target["name"] if target["kind"] == ["test"] else f"{package.relative_to(SOURCE)}/src"
        if name not in found or target["kind"] == ["lib"]:
            found[name] = (message["executable"], package)
    return found


class Run:
    """Runs of tests, each with a log of its own."""

    def __init__(self, binaries):
        self.binaries = binaries
        self.without = {}
        self.lock = threading.Lock()
        self.logs = FOLDER / "logs"
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir(parents=True)

    def environment(self, bug):
        programs = OUT / "debug"
        names = {"AGENT": "agent", "APISERVER": "apiserver", "CONTROLLER": "controller", "AWS": "aws"}
        environment = os.environ | {f"BRUPOP_{name}_BIN": str(programs / f"brupop-{program}") for name, program in names.items()}
        environment |= {"BRUPOP_BIN_DIR": str(programs)}
        for name in ("BRUPOP_DURATIONS", "BRUPOP_SEED", "BRUPOP_PLANTED"):
            environment.pop(name, None)
        return environment | ({"BRUPOP_PLANTED": bug} if bug else {})

    def test(self, test, bug, limit):
        """Runs a test; returns passed, failed, ended or absent, and the seconds that it took."""
        binary, name = test.split(" ", 1)
        if binary not in self.binaries:
            return "absent", 0
        return self.program(binary, ["--include-ignored", "--exact", name], bug, limit, f"{bug or 'none'}.{name.replace('::', '.')}.log")

    def clean(self, test):
        """Runs a test once without a bug, however many bugs name it."""
        with self.lock:
            first = test not in self.without
            known = self.without.setdefault(test, concurrent.futures.Future())
        if first:
            result = self.test(test, None, LONGEST)
            # Once more: what passes at the second try is not red.
            known.set_result(result if result[0] == "passed" else self.test(test, None, LONGEST))
        return known.result()

    def program(self, binary, arguments, bug, limit, log):
        program, folder = self.binaries[binary]
        began = time.monotonic()
        with open(self.logs / log, "w+") as output:
            process = subprocess.Popen([program, *arguments], cwd=folder, env=self.environment(bug), stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return "ended", time.monotonic() - began
            output.seek(0)
            ran = re.search(r"^running ([1-9]\d*) tests?$", output.read(), re.MULTILINE)
        took = time.monotonic() - began
        return ("absent" if not ran else "failed" if code else "passed"), took


def main():
    parser = argparse.ArgumentParser(prog="run.sh", description="Plants bugs, and requires that a test fails with each.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="bugs to plant; all by default")
    parser.add_argument("--check", action="store_true", help="check that the list fits the sources, and build nothing")
    parser.add_argument("--list", action="store_true", help="list the bugs")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="tests that run at a time (4)")
    parser.add_argument("--all-tests", action="store_true", help="run all tests of a bug, also after one that has failed")
    options = parser.parse_args()
    bugs = read_bugs()
    unknown = [name for name in options.names if name not in bugs]
    if unknown:
        fail(f"there is no bug {', '.join(unknown)}: --list lists them")
    if options.list:
        for name, bug in bugs.items():
            print(f"{name} ({bug['level']}): {bug['does']}")
        return
    wrong = check(bugs)
    if wrong:
        fail("integ/plant/bugs.toml does not fit the sources any more: mend it\n  " + "\n  ".join(wrong))
    if options.check:
        print(f"make: all {len(bugs)} planted bugs fit the sources")
        return

    chosen = {name: bug for name, bug in bugs.items() if not options.names or name in options.names}
    tests = sorted({test for bug in chosen.values() for test in bug["tests"]})
    began = time.monotonic()
    plant(bugs)
    run = Run(build(tests))
    print(f"{len(bugs)} bugs planted and compiled in {time.monotonic() - began:.0f} s", flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        sys.exit(judge(run, pool, chosen, options))


def judge(run, pool, chosen, options):
    def with_bug(item):
        name, bug = item
        outcome, rows = "NO TEST", []
        for test in bug["tests"]:
            result, normal = run.clean(test)
            if result != "passed":
                rows.append(f"{test}: {result} without a bug")
                continue
            outcome = "MISSED"
            result, took = run.test(test, name, 2 * normal + 30)
            rows.append(f"{test}: {result}, {took:.0f} s, without the bug {normal:.0f} s")
            if result in ("failed", "ended"):
                outcome = "caught"
                if not options.all_tests:
                    break
        print(f"{outcome:8} {name}: {'; '.join(rows)}", flush=True)
        return name, outcome

    outcomes = dict(pool.map(with_bug, chosen.items()))
    missed = [name for name, outcome in outcomes.items() if outcome != "caught"]
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} planted bugs are caught"
          + (f"; not caught: {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    main()
