"""Runs the unittest modules named on the command line and writes their cases where Bazel looks for them."""

import os
import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree


class _Result(unittest.TextTestResult):
    """Remembers how long each case took."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seconds = {}

    def startTest(self, test):
        self.seconds[test] = -time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        self.seconds[test] += time.monotonic()
        super().stopTest(test)


def _write_xml(path, suite_name, result):
    messages = dict(result.failures + result.errors)
    # A subtest or an import that failed is no case that was started.
    names = list(result.seconds) + [test for test in messages if test not in result.seconds]
    suite = ElementTree.Element("testsuite", name=suite_name, tests=str(len(names)), failures=str(len(messages)))
    for test in names:
        name = str(test).split(" (")[0] if test in result.seconds else str(test)
        case = ElementTree.SubElement(suite, "testcase", classname=suite_name, name=name,
                                      time=f"{result.seconds.get(test, 0):.3f}")
        if test in messages:
            ElementTree.SubElement(case, "failure", message=messages[test])
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def main(modules):
    suite = unittest.defaultTestLoader.loadTestsFromNames(modules)
    result = unittest.TextTestRunner(verbosity=2, resultclass=_Result).run(suite)
    if "XML_OUTPUT_FILE" in os.environ:
        _write_xml(os.environ["XML_OUTPUT_FILE"], "_".join(modules), result)
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
