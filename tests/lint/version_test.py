"""Checks what ./run and ./package do with the version and the help, on a copy of the workspace without a set-up."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import workspace

TOP = workspace.root()
VERSION = re.search(r'^    version = "(.*)",$', (TOP / "MODULE.bazel").read_text(), re.MULTILINE)[1]


class VersionTest(unittest.TestCase):

    def setUp(self):
        self.top = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for path in ("run", "package", "MODULE.bazel", "driver/settings/command_line.cc"):
            (self.top / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / path, self.top / path)
        self.bin = self.top / "bin"
        self.write("third_party/setup", "echo a set-up ran >&2; exit 1")
        self.write("bin/bazel", "echo Bazel ran >&2; exit 1")

    def write(self, path, script):
        file = self.top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def start(self, *command, folder=None):
        environment = {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.top / "home")}
        return subprocess.run([self.top / command[0], *command[1:]], cwd=folder or self.top, env=environment, text=True,
                              capture_output=True, check=False)

    def test_the_version_needs_no_set_up_and_no_build(self):
        ended = self.start("run", "--version")

        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, f"lockstep {VERSION}\n", ""))

    def test_the_help_needs_none_and_is_the_programs(self):
        text = re.search(r'kUsage\[\] =\s+R"\((.*?)\)"', (self.top / "driver/settings/command_line.cc").read_text(),
                         re.DOTALL)[1]
        for option in ("--help", "-h"):
            ended = self.start("run", option)

            self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, text, ""))
        self.assertIn("--version", text)

    def test_another_option_needs_them(self):
        self.assertIn("a set-up ran", self.start("run", "train.lua").stderr)

    def test_the_header_has_the_version(self):
        script = TOP / "base/version_header.sh"
        header = subprocess.run([script, TOP / "MODULE.bazel"], text=True, capture_output=True, check=True).stdout
        self.assertIn(f'constexpr char kVersion[] = "{VERSION}";', header)

        broken = self.top / "MODULE.bazel"
        broken.write_text("module()\n")
        ended = subprocess.run([script, broken], text=True, capture_output=True, check=False)
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn("has no line with a version", ended.stderr)

    def test_the_archive_has_the_version_in_its_name(self):
        self.write("third_party/setup", "true")
        self.write("bin/bazel", "mkdir -p bazel-bin/driver/package lockstep/bin && echo built_for=2.15.1 >lockstep/bin/lockstep && "
                   "tar cf bazel-bin/driver/package/lockstep.tar lockstep")
        self.write("home/.cache/lockstep/data/digits.csv.gz", "")
        elsewhere = self.top / "elsewhere"
        elsewhere.mkdir()

        for arguments in ([], [elsewhere], [elsewhere / "mine.tar"], [elsewhere / "new/dist/mine.tar"]):
            ended = self.start("package", *arguments, folder=self.bin)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("; it needs torch 2.15 where it runs", ended.stdout)

        self.assertTrue((self.bin / f"lockstep-{VERSION}.tar").exists())
        self.assertEqual({path.name for path in elsewhere.rglob("*.tar")}, {f"lockstep-{VERSION}.tar", "mine.tar"})
        self.assertTrue((elsewhere / "new/dist/mine.tar").exists())

    def test_the_pages_have_the_version(self):
        for path in ("README.md", "tests/consumer/MODULE.consumer"):
            with self.subTest(path):
                text = (TOP / path).read_text()
                self.assertIn(f'bazel_dep(name = "lockstep", version = "{VERSION}")', text)
                self.assertEqual(set(re.findall(r"lockstep-(\d[\d.]*)\.tar", text)) - {VERSION}, set())


if __name__ == "__main__":
    unittest.main()
