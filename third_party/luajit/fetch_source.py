"""Downloads the source archive of a requirements file: fetch_source.py REQUIREMENTS OUT.tar.gz.

The file holds one line `name==version --hash=sha256:...`. pip download would do it, but runs the archive's own build to
read its metadata. The package index is the one that pip uses: of its settings, or its default.
"""

import hashlib
import html.parser
import re
import subprocess
import sys
import urllib.parse
import urllib.request


def pip(*arguments):
    command = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def index_url():
    settings = re.findall(r"^(\S+)\.index-url='(.*)'$", pip("config", "list"), re.M)
    for section in (":env:", "download", "global"):
        for name, url in settings:
            if name == section:
                return url
    default = re.search(r"--index-url\s.*?\(default\s+(\S+)\)", pip("help", "download"), re.S)
    if default is None:
        sys.exit("fetch_source: pip names no package index; set PIP_INDEX_URL")
    return default[1]


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.hrefs = []

    def handle_starttag(self, tag, attrs):
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href"]


def read(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def main(requirements, out):
    with open(requirements, encoding="utf-8") as file:
        name, version, sha256 = re.search(r"^(\S+)==(\S+) --hash=sha256:([0-9a-f]{64})$", file.read(), re.M).groups()
    page = index_url().rstrip("/") + f"/{name}/"
    links = Links()
    links.feed(read(page).decode())
    archive = f"{name}-{version}.tar.gz"
    for href in links.hrefs:
        url = urllib.parse.urljoin(page, href)
        if urllib.parse.urlparse(url).path.endswith("/" + archive):
            break
    else:
        sys.exit(f"fetch_source: {page} has no {archive}")
    data = read(url)
    actual = hashlib.sha256(data).hexdigest()
    if actual != sha256:
        sys.exit(f"fetch_source: {archive} has the SHA-256 {actual}, expected {sha256}")
    with open(out, "wb") as file:
        file.write(data)


main(*sys.argv[1:])
