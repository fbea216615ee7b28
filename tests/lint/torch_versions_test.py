"""Checks which versions of libtorch the set-up takes, on a copy of it that finds everything else there."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import workspace

TOP = workspace.root()
COPIED = ["third_party/setup", "third_party/libtorch/libtorch.bzl"]
COPIED += [f"third_party/{name}/requirements.txt" for name in ("digits", "libtorch", "tensorboard", "torch_python")]


class TorchVersionsTest(unittest.TestCase):

    def setUp(self):
        self.top = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for path in COPIED:
            (self.top / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / path, self.top / path)
        self.cache = self.top / "cache"
        for name in ("digits", "tensorboard", "torch_python"):
            lock = (self.top / f"third_party/{name}/requirements.txt").read_bytes()
            (self.cache / f"{name}-{hashlib.sha256(lock).hexdigest()[:8]}").mkdir(parents=True)
        for tool, line in (("dpkg-query", "printf installed"), ("bazel", "echo bazel 4.2.3")):
            file = self.top / "bin" / tool
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"#!/bin/sh\n{line}\n")
            file.chmod(0o755)

    def make_torch(self, version, header="headeronly"):
        numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
        file = self.top / f"torch-{version}/torch/include/torch/{header}/version.h"
        file.parent.mkdir(parents=True)
        file.write_text("#pragma once\n\n" + "".join(f"#define TORCH_VERSION_{name} {n}\n" for name, n in numbers))
        (self.top / f"torch-{version}/torch/include/ATen").mkdir()
        return self.top / f"torch-{version}"

    def set_up(self, libtorch):
        environment = {"PATH": f"{self.top / 'bin'}:{os.environ['PATH']}", "HOME": str(self.top), "LIBARROW": "",
                       "LUAJIT": "luajit", "LOCKSTEP_CACHE": str(self.cache), "LIBTORCH": str(libtorch)}
        return subprocess.run([self.top / "third_party/setup"], env=environment, text=True, capture_output=True,
                              check=False)

    def test_2_11_to_2_15_are_taken(self):
        for version in ("2.11.0", "2.12.1", "2.15.0"):
            for folder in (self.make_torch(version), self.top / f"torch-{version}/torch"):
                with self.subTest(folder):
                    ended = self.set_up(folder)

                    self.assertEqual(ended.returncode, 0)
                    warning = (f"setup: torch {version}: CI tests 2.11; CONTRIBUTING.md, \"Another torch\", "
                               "says what has run with this one\n")
                    self.assertEqual(ended.stderr, "" if version == "2.11.0" else warning)
                    self.assertIn(f"build --repo_env=LIBTORCH={folder}\n", (self.top / ".bazelrc.setup").read_text())

    def test_others_are_refused_in_one_line(self):
        cases = [("2.10.0", "headeronly"), ("2.9.1", "csrc/api/include/torch"), ("2.16.0", "headeronly"),
                 ("3.0.0", "headeronly"), ("1.13.0", "csrc/api/include/torch")]
        for version, header in cases:
            with self.subTest(version):
                folder = self.make_torch(version, header)

                ended = self.set_up(folder)

                self.assertEqual((ended.returncode, ended.stderr), (1, (
                    f"setup: LIBTORCH={folder} is torch {version}, and Lockstep builds with torch 2.11 to 2.15: name another one, "
                    "or unset it to have 2.11 fetched\n")))

    def test_a_folder_without_torch_is_refused(self):
        ended = self.set_up(self.cache)

        self.assertEqual((ended.returncode, ended.stderr), (
            1, f"setup: LIBTORCH={self.cache} holds neither include/ATen nor torch/include/ATen\n"))

    def test_the_pinned_one_is_the_oldest(self):
        oldest = [line for line in (TOP / COPIED[1]).read_text().splitlines() if line.startswith("OLDEST = ")]
        pinned = [line for line in (TOP / "third_party/libtorch/requirements.txt").read_text().splitlines()
                  if line.startswith("torch==")]

        self.assertEqual(oldest, ['OLDEST = "2.11"'])
        self.assertTrue(pinned[0].startswith("torch==2.11.0 "), pinned)


if __name__ == "__main__":
    unittest.main()
