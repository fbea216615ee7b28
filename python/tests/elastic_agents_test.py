"""Runs that lose and gain an agent of the real torchrun: run.elastic of tests/scripts/elastic.lua."""

import json
import os
import pathlib
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

PROGRAM = pathlib.Path("driver/lockstep").absolute()
SCRIPT = pathlib.Path("tests/scripts/elastic.lua").absolute()
PATIENCE = 100  # seconds, for one line of an agent


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Agent:
    """torchrun for one rank of one or two, whose output a thread reads."""

    def __init__(self, number, port, folder, share_store, settings, options=(), around=(), nnodes="1:2"):
        # The first agent hosts torchrun's own store, which no agent outlives.
        rendezvous = ("keep_alive_interval=2,keep_alive_max_attempt=4,last_call_timeout=20,"
                      f"is_host={int(number == 0)}")
        command = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nnodes", nnodes, "--nproc-per-node",
                   "1", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}",
                   "--rdzv-id", "elastic", "--rdzv-conf", rendezvous, "--monitor-interval", "0.2", "--local-addr",
                   f"127.0.0.{number + 1}", *around, str(PROGRAM), str(SCRIPT), "--run-dir", f"{folder}/out",
                   *options]
        for setting in settings:
            command += ["--set", setting]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, cwd=folder,
            env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0" if share_store else "1"})
        self.text, self.lines = "", queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.text += line
            self.lines.put(line)
        self.lines.put(None)

    def wait_for(self, pattern):
        """Returns the match of the next line that has the pattern."""
        while True:
            line = self.lines.get(timeout=PATIENCE)
            if line is None:
                raise AssertionError(f"the agent ended before {pattern}:\n{self.text}")
            found = re.search(pattern, line)
            if found:
                return found

    def wait(self):
        code = self.process.wait(timeout=PATIENCE)
        self.reader.join()
        return code

    def kill(self, *ranks):
        """Ends the agent as a lost machine does, with these ranks."""
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def clean_up(self):
        if self.process.poll() is None:
            for pid in re.findall(r"I am \d+ pid (\d+) of", self.text):
                try:
                    if os.path.samefile(f"/proc/{pid}/exe", PROGRAM):
                        os.kill(int(pid), signal.SIGKILL)
                except OSError:
                    pass
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


def samples(text):
    """The samples that each step took, of the dataset and of the loader."""
    found = set()
    for step, of_dataset, of_loader in re.findall(r"step (\d+) took (\d+) and (\d+)", text):
        found |= {(int(step), "dataset", of_dataset), (int(step), "loader", of_loader)}
    return found


def losses(folder):
    lines = pathlib.Path(folder, "out", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {record["step"]: record["loss"] for record in map(json.loads, lines)}


class ElasticAgentsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.port = free_port()
        self.agents = []

    def start(self, share_store, settings, options=(), **more):
        agent = Agent(len(self.agents), self.port, self.folder, share_store, settings, options, **more)
        self.addCleanup(agent.clean_up)
        self.agents.append(agent)
        return agent

    def alone(self, settings=()):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        command = [PROGRAM, "--nproc", "1", "--run-dir", f"{folder}/out", SCRIPT]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return samples(done.stdout), losses(folder)

    def lose_one_of_two(self, share_store, settings):
        """Starts two agents and kills the second in step 3. Returns the first."""
        settings = ["every=1", "hold_at=3", *settings]
        agents = [self.start(share_store, settings) for _ in range(2)]
        # An agent that is there first may begin alone, and takes the other one in later.
        pids = [int(agent.wait_for(r"I am \d+ pid (\d+) of 2")[1]) for agent in agents]
        agents[1].wait_for("holding")
        agents[1].kill(pids[1])
        return agents[0]

    def check_end(self, agent, settings=()):
        self.assertEqual(agent.wait(), 0, agent.text)
        expected_samples, expected_losses = self.alone(settings)
        self.assertEqual(samples("".join(one.text for one in self.agents)), expected_samples)
        found = losses(self.folder)
        self.assertEqual(sorted(found), sorted(expected_losses))
        for step, loss in expected_losses.items():
            self.assertAlmostEqual(found[step], loss, delta=1e-12)

    def test_a_run_goes_on_with_one_agent_less(self):
        agent = self.lose_one_of_two(True, [])
        agent.wait_for(r"I am 0 pid \d+ of 1")
        agent.wait_for("resumed from .*, after [3-9]")
        self.check_end(agent)

    def test_a_run_goes_on_with_one_agent_less_and_then_one_more(self):
        agent = self.lose_one_of_two(False, ["wait_at=7"])
        agent.wait_for(r"I am 0 pid \d+ of 1")
        agent.wait_for("waiting")
        other = self.start(False, ["every=1", "hold_at=3", "wait_at=7"])
        other.wait_for(r"I am \d pid \d+ of 2")
        agent.wait_for("resumed from .*, after 8 steps")
        self.assertEqual(other.wait(), 0, other.text)
        self.check_end(agent)

    def test_a_run_goes_on_without_the_agent_of_a_slow_rank(self):
        settings = ["steps=150", "every=1000", "slow_ms=20"]
        shell = ["bash", "-c", '"$@"; exit $?', "rank"]  # the agent is not the parent of the rank
        agents = [self.start(True, settings, ["--evict-slow", "1.9"], around=shell) for _ in range(2)]
        for agent in agents:
            agent.wait_for(r"I am \d pid \d+ of 2")
        slow = agents[1]
        self.assertNotEqual(slow.wait(), 0, slow.text)
        self.assertNotRegex(slow.text, r"pid \d+ of 1\b")
        agents[0].wait_for(r"rank 1 .* worked .*--evict-slow 1.9; torchrun's agent there ends, and the others go on")
        agents[0].wait_for(r"I am 0 pid \d+ of 1")
        agents[0].wait_for("resumed from .*, after 10[01] steps")
        self.check_end(agents[0], settings[:2])

    def test_a_slow_rank_leaves_no_agent_waiting_for_another_machine(self):
        settings = ["steps=110", "every=1000", "slow_ms=20"]
        for _ in range(2):
            self.start(True, settings, ["--evict-slow", "1.9"], nnodes="2")
        self.agents[0].wait_for(r"rank 1 .* worked .*--evict-slow 1.9: the state after")
        self.agents[0].wait_for("resumed from .*, after 10[01] steps")
        self.assertEqual(self.agents[1].wait(), 0, self.agents[1].text)
        self.check_end(self.agents[0], settings[:2])


if __name__ == "__main__":
    unittest.main()
