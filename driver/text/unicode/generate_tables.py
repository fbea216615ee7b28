#!/usr/bin/env python3
"""Writes tables.inc: generate_tables.py >tables.inc

Needs unicodedata2 16.0.0 and unicode-age 18.0.0.0 from PyPI. Two versions of Unicode are wanted, because PyPI's
tokenizers 0.23.3 has two: classes of characters are those of Unicode 16.0, normal forms those of Unicode 9.0.
Unicode never changes the normal form of a character that exists, so the forms of 9.0 are those of 16.0 without
the characters that are younger than 9.0.

Lower case comes from Python's own str.lower() for characters that it knows. For younger ones the name decides:
"... CAPITAL LETTER X" becomes "... SMALL LETTER X".
"""

import sys
import unicodedata

import unicode_age
import unicodedata2 as ucd

assert ucd.unidata_version == "16.0.0", ucd.unidata_version
NORMAL_FORMS = (9, 0)

# The order is that of `enum class CharClass` in unicode.h.
OTHER, UPPER, LOWER, LETTER, MARK, DIGIT, LETTER_NUMBER, NUMBER, SPACE, WORD = range(10)
_SPACES = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
# Other_Alphabetic symbols and Join_Control: parts of a word that no category tells.
_WORDS = {*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A),
          0x200C, 0x200D}
_CATEGORIES = {
    "Lu": UPPER, "Lt": UPPER, "Ll": LOWER, "Lm": LETTER, "Lo": LETTER, "Mn": MARK, "Mc": MARK, "Me": MARK,
    "Nd": DIGIT, "Nl": LETTER_NUMBER, "No": NUMBER, "Pc": WORD,
}  # fmt: skip


def char_class(code):
    if code in _SPACES:
        return SPACE
    if code in _WORDS:
        return WORD
    return _CATEGORIES.get(ucd.category(chr(code)), OTHER)


def runs(value, shift):
    """Where the value of a code point differs from the one before: code << shift | value."""
    last, found = 0, []
    for code in range(0x110000):
        now = value(code)
        if now != last:
            found.append(code << shift | now)
            last = now
    return found


def has_normal_form(code):
    if ucd.category(chr(code)) in ("Cn", "Cs", "Co"):
        return False
    return unicode_age.version(code) <= NORMAL_FORMS


def decompositions(known):
    """Canonical ones as (code, first, second or 0); compatible ones in full, as code, length, characters."""
    canonical, compatible = [], []
    for code in known:
        if 0xAC00 <= code <= 0xD7A3 or not ucd.decomposition(chr(code)):
            continue  # Hangul syllables are arithmetic
        parts = ucd.decomposition(chr(code)).split()
        if parts[0].startswith("<"):
            full = [ord(c) for c in ucd.normalize("NFKD", chr(code))]
            compatible += [code, len(full), *full]
        else:
            first, second = ([int(part, 16) for part in parts] + [0])[:2]
            excluded = ucd.normalize("NFC", chr(code)) != chr(code)
            canonical += [code | excluded << 31, first, second]
    return canonical, compatible


def lower_case():
    names = {}
    for code in range(0x110000):
        if ucd.category(chr(code)) == "Ll":
            names[ucd.name(chr(code))] = code
    pairs = []
    for code in range(0x110000):
        if ucd.category(chr(code)) == "Cn":
            continue
        lower = chr(code).lower() if unicodedata.category(chr(code)) != "Cn" else chr(code)
        if unicodedata.category(chr(code)) == "Cn" and ucd.category(chr(code)) == "Lu":
            lower = chr(names[ucd.name(chr(code)).replace("CAPITAL", "SMALL")])
        if lower != chr(code) and len(lower) == 1:
            pairs += [code, ord(lower)]
    return pairs


def ranges(pairs):
    """Runs of pairs whose codes are one or two apart and move by the same distance: first, last, step, first's lower."""
    found = []
    for code, lower in zip(pairs[::2], pairs[1::2]):
        if found:
            first, last, step, start = found[-1]
            gap = code - last
            if gap in (1, 2) and lower - code == start - first and (first == last or gap == step):
                found[-1] = (first, code, gap, start)
                continue
        found.append((code, code, 1, lower))
    return [number for row in found for number in row]


def write(name, comment, numbers):
    print(f"\n// {comment}\nconstexpr uint32_t {name}[] = {{")
    line = ""
    for number in numbers:
        text = f"{number}," if number < 10 else f"0x{number:x},"
        if len(line) + len(text) > 118:
            print(line)
            line = ""
        line += text
    print(line + "};")


def main():
    known = [code for code in range(0x110000) if has_normal_form(code)]
    ages = set(known)
    canonical, compatible = decompositions(known)
    print("// Written by generate_tables.py: classes of Unicode 16.0, normal forms of Unicode 9.0. Do not edit.")
    write("kClassRuns", "code << 4 | CharClass, where the class changes", runs(char_class, 4))
    combining = runs(lambda code: ucd.combining(chr(code)) if code in ages else 0, 8)
    write("kCombiningRuns", "code << 8 | canonical combining class, where it changes", combining)
    write("kCanonical", "code, first, second or 0; bit 31 of code: never composed", canonical)
    write("kCompatible", "code, length, characters of its full decomposition", compatible)
    write("kLowerRanges", "first, last, step, lower case of first", ranges(lower_case()))


if __name__ == "__main__":
    sys.exit(main())
