"""check.py in its tiny form on the CPU: all of its code but the device and the sizes."""

import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

FOLDER = pathlib.Path("benchmarks/gpu")
ITEMS = ("1B, 8 x 1,024", "families", "8B layers, 1 x 8,192", "decode, 0.6b", "decode, 8b", "attention", "cross entropy",
         "LoRA, 8B layers", "FSDP, one GPU", "offload", "graphs", "pinned copies", "float8 layers")  # fmt: skip


class CheckTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.mkdtemp(dir=os.environ["TEST_TMPDIR"])
        self.command = [sys.executable, "-B", str(FOLDER / "check.py"), "--cpu", "--program", "driver/lockstep",
                        "--models", "tests/models", "--scratch", scratch]  # fmt: skip

    def test_every_item_runs_and_its_results_are_right(self):
        of_a_job = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        done = subprocess.run(self.command, capture_output=True, text=True, check=False, env=of_a_job)

        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
        for item in ITEMS:
            verdicts = {row[-1] for row in rows if row[0] == item}
            self.assertIn("pass", verdicts, item)
        # Both sides were timed, and their kernels are told apart.
        speeds = [row for row in rows if row[1].startswith(("tokens/s", "ms at"))]
        self.assertEqual(len([row for row in speeds if float(row[5]) > 0]), 9, speeds)
        # Lines for the table of kernels/attention/backends.cc: three lengths, and two other sizes of heads.
        lines = re.findall(r'for kTable: \{0, 0, Pass::(k\w+), \d+, \d+, \w+, Rows::(k\w+), Backend::kMath, "gpu_check: math [\d.e-]+ ms"\},',
                           done.stdout)  # fmt: skip
        self.assertEqual(collections.Counter(lines), {("kTraining", "kBatch"): 5, ("kTraining", "kAll"): 5, ("kDecoding", "kAll"): 3})
        self.assertEqual(len(re.findall(r"matrix products +[0-9.]*[1-9][0-9.]* +[0-9.]*[1-9]", done.stdout)), 2)

    def test_an_interrupt_ends_the_programs_and_prints_the_table_so_far(self):
        with subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True) as process:
            before = ""
            while "[pass] families: families:" not in before:
                line = process.stdout.readline()
                self.assertTrue(line, before)
                before += line
            process.send_signal(signal.SIGTERM)
            rest = process.stdout.read()

        self.assertEqual(process.returncode, 1)
        self.assertRegex(rest, r"\| 1B, 8 x 1,024 \| loss of step 1 \| .* \| pass \|")
        self.assertRegex(rest, r"ended by SIGTERM: \d+ pass, 0 MISS, 0 FAILED")

    def test_wrong_results_and_programs_that_fail_are_rows_that_say_what_to_do(self):
        changes = {"model.py": ("-slots / self.dim", "-slots / (self.dim + 9)"),
                   "decode.lua": ('timing.report("tokens/s"', 'error "broken"; timing.report("tokens/s"')}  # fmt: skip
        with tempfile.TemporaryDirectory(dir=os.environ["TEST_TMPDIR"]) as copy:
            for file in FOLDER.glob("*.*"):
                text = file.read_text()
                if file.name in changes:
                    self.assertIn(changes[file.name][0], text)
                    text = text.replace(*changes[file.name])
                (pathlib.Path(copy) / file.name).write_text(text)
            command = [part.replace(str(FOLDER), copy) for part in self.command]
            done = subprocess.run([*command, "--only", "decode, 8b"], capture_output=True, text=True, check=False)

        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"(?s)\| .*broken.*\[FAILED\] decode, 8b \(exit code 1\)\n +next: ")
        self.assertRegex(done.stdout, r"\[not run\] decode, 8b: tokens/s: eager .* \(the program failed\)")
        self.assertRegex(done.stdout, r"\[MISS\] decode, 8b: sum of ids: .*\n +next: the models differ")


    def test_without_time_every_item_is_a_row_that_says_so(self):
        done = subprocess.run([*self.command, "--budget", "0"], capture_output=True, text=True, check=False)

        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for item in ITEMS:
            self.assertIn(f"[not run] {item} (the time is used up)", done.stdout)

    def test_a_limit_that_has_passed_ends_the_process(self):
        sys.path.insert(0, str(FOLDER))
        from process import Process

        for _ in range(5):
            process = Process(lambda: time.sleep(3600), time.monotonic() - 1)
            self.assertEqual(process.problem, "took longer than its limit")


class TracesTest(unittest.TestCase):
    def test_time_of_a_gpu_is_told_by_kernel_with_the_time_between(self):
        sys.path.insert(0, str(FOLDER))
        import traces

        events = [("kernel", "nvjet_tst_128x256", 0, 3000), ("kernel", "triton_red_fused_rms_norm", 4000, 1000),
                  ("gpu_memcpy", "Memcpy HtoD", 4500, 2000), ("kernel", "cudnn_sdpa_sm90_flash_fprop", 6500, 500),
                  ("cpu_op", "aten::mm", 0, 9000)]  # fmt: skip
        path = pathlib.Path(os.environ["TEST_TMPDIR"]) / "trace.json"
        path.write_text(json.dumps({"traceEvents": [dict(zip(("cat", "name", "ts", "dur"), event)) for event in events]}))

        lines = {line[:26].strip(): line[26:].split() for line in traces.summary({"ours": path}, is_gpu=True)}

        self.assertEqual({name: lines[name] for name in ("matrix products", "fused by torch.compile", "copies", "attention", "no kernel")},
                         {"matrix products": ["3.00"], "fused by torch.compile": ["1.00"], "copies": ["2.00"], "attention": ["0.50"],
                          "no kernel": ["1.00"]})  # fmt: skip


if __name__ == "__main__":
    unittest.main()
