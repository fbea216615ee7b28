#!/usr/bin/env python3
"""Writes driver/lualib/lockstep/text/jinja/unicode_tables.lua: how Python maps letters and which characters repr escapes.

    python3 tests/unicode_tables.py > driver/lualib/lockstep/text/jinja/unicode_tables.lua

The tables are of the Unicode version that this Python has. Python 3.11 (Unicode 14.0) wrote the committed file.
"""

import sys
import unicodedata

CHARACTERS = [chr(c) for c in range(128, 0x110000) if not 0xD800 <= c <= 0xDFFF]


def ranges(holds):
    """Returns "first:length" of the runs of code points for which `holds` is true, in base 16, as steps."""
    runs, last = [], 0
    for character in CHARACTERS:
        if not holds(character):
            continue
        point = ord(character)
        if runs and runs[-1][0] + runs[-1][1] == point:
            runs[-1][1] += 1
        else:
            runs.append([point, 1])
    words = []
    for first, length in runs:
        words.append(f"{first - last:x}" + (f":{length:x}" if length > 1 else ""))
        last = first + length
    return words


def pairs(mapping, other=None):
    """Returns "step=points" of the characters that `mapping` changes and that `other` maps differently."""
    words, last = [], 0
    for character in CHARACTERS:
        mapped = mapping(character)
        if mapped == (other(character) if other else character):
            continue
        words.append(f"{ord(character) - last:x}=" + "+".join(f"{ord(m) - ord(character):x}" for m in mapped))
        last = ord(character)
    return words


def is_cased(character):
    return character.isupper() or character.islower() or character.istitle()


def is_case_ignorable(character):
    """A final sigma looks past such characters for the letter before it."""
    return not is_cased(character) and ("A" + character + "\u03a3").lower().endswith("\u03c2")


def write(name, words):
    print(f"M.{name} = [[")
    line = ""
    for word in words:
        if len(line) + 1 + len(word) > 118:
            print(line)
            line = ""
        line += (" " if line else "") + word
    print(line + "]]\n")


def main():
    print("--- Letters and printable characters of Unicode " + unicodedata.unidata_version + ", from 128 on.")
    print("--- Written by tests/unicode_tables.py; lockstep.text.jinja.unicode reads them.")
    print()
    print("local M = {}")
    print()
    write("upper", pairs(str.upper))
    write("title", pairs(str.title, str.upper))
    write("lower", pairs(str.lower))
    write("cased", ranges(is_cased))
    write("upper_case", ranges(str.isupper))
    write("case_ignorable", ranges(is_case_ignorable))
    write("unprintable", ranges(lambda c: not c.isprintable()))
    print("return M")


sys.exit(main())
