"""Counts the test cases of a `bazel test`: summarize.py EVENTS, the file of --build_event_json_file.

Prints every failed case and, last, `N passed, N failed`. Exits with 1 if any failed or none ran.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def results(path):
    """Yields (label, status, path of its test.xml or None) of every test that ended."""
    with open(path, encoding="utf-8") as events:
        for line in events:
            event = json.loads(line)
            if "testResult" not in event:
                continue
            result = event["testResult"]
            outputs = {o["name"]: o.get("uri", "") for o in result.get("testActionOutput", [])}
            uri = outputs.get("test.xml", "")
            xml = urllib.parse.unquote(urllib.parse.urlparse(uri).path) if uri.startswith("file:") else None
            yield event["id"]["testResult"]["label"], result["status"], xml


def cases(xml):
    """Yields (name, failed) of the cases in a JUnit file."""
    for case in ElementTree.parse(xml).iter("testcase"):
        name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
        yield name, any(child.tag in ("failure", "error") for child in case)


def main(path):
    passed, failed = 0, []
    for label, status, xml in results(path):
        failed_here = []
        if xml:
            try:
                for name, is_failed in cases(xml):
                    if is_failed:
                        failed_here.append(f"{label} {name}")
                    else:
                        passed += 1
            except (ElementTree.ParseError, OSError) as error:
                failed_here.append(f"{label} (its results cannot be read: {error})")
        # A crash or a timeout may leave only cases that passed.
        if status != "PASSED" and not failed_here:
            failed_here.append(f"{label} ({status.lower()})")
        failed += failed_here
    for name in sorted(set(failed)):
        print(f"FAILED: {name}")
    print(f"{passed} passed, {len(set(failed))} failed")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
