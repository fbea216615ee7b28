"""Small templates that ask for one thing each."""

VARIABLES = {
    "s": "Hello, World",
    "u": "größe ΣΑΣ İx ŒUVRE 東京 \U0001f3d4\ufe0f e\u0301 \u01c6",
    "spaces": " \t\u00a0x y\u2003\n",
    "empty": "",
    "quotes": "it's \"both\" \\ \n\t\x01\u200b\u00e9\U0001f600",
    "html": "<a href='x'>\"&\"</a>",
    "n": 7,
    "negative": -3,
    "f": 2.5,
    "whole": 3.0,
    "large": 1e22,
    "tiny": 1.5e-7,
    "yes": True,
    "no": False,
    "nothing": None,
    "numbers": [3, 1, 2],
    "mixed": [1, "a", None, True, 2.0, [1], {"k": "v"}],
    "words": ["b", "A", "c", "a", "B"],
    "none_list": [],
    "none_dict": {},
    "d": {"b": 1, "a": {"x": [1, 2]}, "items": "shadow", "é": "ü"},
    "people": [
        {"name": "Zoë", "age": 30, "tags": ["x"], "role": "user"},
        {"name": "adam", "age": 25, "tags": [], "role": "tool"},
        {"name": "Bob", "age": 30, "role": "user", "extra": None},
    ],
}

SNIPPETS = r"""
{{ s }}|{{ u }}|{{ n }}|{{ f }}|{{ whole }}|{{ large }}|{{ tiny }}|{{ yes }}|{{ nothing }}|{{ absent }}|
{{ mixed }} {{ d }} {{ people }} {{ none_list }} {{ none_dict }}
{{ [quotes, u, html, s] }}
{{ (1,) }} {{ () }} {{ (1, 'a') }} {{ {1: 2, none: 3, true: 4, 1.5: 5} }}
{{ 1e16 }} {{ 1e15 }} {{ 123456789.125 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ 0.0001 }} {{ -0.0 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }}
{{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 7.5 // 2 }} {{ 7.5 % 2 }}
{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -2 ** 2 }} {{ 2 * 3 ** 2 }} {{ 2 ** 3 ** 2 }} {{ - n }} {{ +n }} {{ --n }}
{{ 1 + 1.0 }} {{ 2 * 1.5 }} {{ true + 1 }} {{ n - whole }} {{ 'a' * 3 }} {{ [1, 2] * 2 }} {{ 3 * 'ab' }} {{ [1] + [2] }}
{{ 'a' ~ 1 ~ 2.0 ~ none ~ true ~ absent ~ [1] }} {{ 1 ~ 2 * 3 }} {{ 'x' ~ 'y' + 'z' }}
{{ 'a' + 'b' + s + u }} {{ 'a' + ('b' + 'c') }}
{{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == "a" }} {{ [1] == [1.0] }} {{ d == d }} {{ none == false }} {{ absent == absent2 }} {{ 1 == '1' }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ 'Z' < 'a' }} {{ 'é' > 'z' }} {{ [1, 2] < [1, 3] }} {{ 3 >= 3.0 }} {{ 2 != 2 }}
{{ 'ell' in s }} {{ 'x' not in s }} {{ 1 in numbers }} {{ 9 in numbers }} {{ 'b' in d }} {{ 'z' in d }} {{ 'x' in absent }} {{ '' in s }} {{ none in mixed }} {{ 1.0 in [1] }}
{{ yes and 'x' }} {{ no and 'x' }} {{ empty or 'fallback' }} {{ s or 'x' }} {{ not s }} {{ not absent }} {{ not (yes and no) }} {{ 0 or none or [] }}
{{ 'a' if yes else 'b' }} {{ 'a' if no else 'b' }} {{ 'a' if no }} {{ 'a' if no else 'b' if no else 'c' }} {{ ('x' if yes) ~ 'y' }}
{{ s[0] }} {{ s[-1] }} {{ s[99] }} {{ u[0] }} {{ u[-1] }} {{ u[2] }} {{ numbers[0] }} {{ numbers[-1] }} {{ numbers[5] }} {{ numbers['x'] }}
{{ s[:3] }}|{{ s[3:] }}|{{ s[-3:] }}|{{ s[::-1] }}|{{ s[1:8:2] }}|{{ s[8:1:-2] }}|{{ u[1:4] }}|{{ u[::-1] }}|{{ s[5:2] }}|{{ s[:-1] }}
{{ numbers[1:] }} {{ numbers[::-1] }} {{ numbers[:-1] }} {{ numbers[-2:] }} {{ numbers[::2] }} {{ (1, 2, 3)[1:] }} {{ numbers[5:] }} {{ numbers[-9:9] }}
{{ d.b }} {{ d['b'] }} {{ d.a.x[1] }} {{ d['items'] }} {{ d.missing }} {{ d['missing'] is defined }} {{ d.missing is defined }} {{ people.0.name }} {{ d['é'] }}
{{ d.get('b') }} {{ d.get('z') }} {{ d.get('z', 5) }} {{ d.get('z', default=6) if false }} {{ d.keys() }} {{ d.values() }} {{ d.items() }} {{ d.keys() | list }}
{{ d.items is defined }} {{ d.items is callable }} {{ 'x' if d.get else 'y' }} {{ d['keys'] is callable }} {{ none_dict.items() | list }}
{{ s.upper() }} {{ s.lower() }} {{ u.upper() }} {{ u.lower() }} {{ u.title() }} {{ s.title() }} {{ u.capitalize() }} {{ 'ΑΣ ΑΣΑ'.lower() }} {{ 'ßx ŉa'.title() }}
{{ "they're bill's x2y".title() }} {{ 'HELLO wORLD'.capitalize() }} {{ 'ǆabc ΣΑΣ'.capitalize() }} {{ ''.title() }}
{{ spaces.strip() }}|{{ spaces.lstrip() }}|{{ spaces.rstrip() }}|{{ 'xxhixx'.strip('x') }}|{{ 'xyhiyx'.strip('xy') }}|{{ 'éhié'.strip('é') }}|{{ '\n\na\n'.lstrip('\n') }}|
{{ s.split() }} {{ s.split(', ') }} {{ s.split('l') }} {{ s.split('l', 1) }} {{ spaces.split() }} {{ 'a,b,,c'.split(',') }} {{ ''.split() }} {{ ''.split(',') }} {{ ' a  b c '.split(none, 1) }}
{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b  c '.rsplit(none, 1) }} {{ 'a,b,c'.rsplit(',') }} {{ 'abc'.rsplit(',', 1) }} {{ 'a\nb\r\nc\n'.splitlines() }} {{ 'a\x0bb\x1cc d'.splitlines() }}
{{ s.startswith('He') }} {{ s.endswith('ld') }} {{ s.startswith(('x', 'H')) }} {{ s.startswith('l', 2) }} {{ s.endswith('') }} {{ u.startswith('ö', 2) }} {{ s.endswith('lo', 0, 5) }}
{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'aaa'.replace('', '-') }} {{ 'aaa'.replace('', '-', 2) }} {{ s.replace('zz', 'y') }} {{ s.replace('o', '') }}
{{ s.find('o') }} {{ s.find('zz') }} {{ u.find('Σ') }} {{ s.rfind('o') }} {{ s.count('l') }} {{ 'aaa'.count('aa') }} {{ s.index('o') }} {{ s.find('o', 5) }} {{ s.find('l', -3) }} {{ 'abc'.count('') }}
{{ '-'.join(['a', 'b']) }} {{ ', '.join(d) }} {{ ''.join(s) }} {{ '5'.zfill(3) }} {{ '-5'.zfill(4) }} {{ 'ab'.ljust(5, '.') }} {{ 'ab'.rjust(5) }} {{ 'ab'.center(5, '*') }} {{ 'abc'.center(6, '*') }}
{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ 'AB'.isupper() }} {{ 'aB'.islower() }} {{ ' \t'.isspace() }} {{ 'Σ'.isupper() }} {{ '1'.isupper() }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('bc') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'ab'.partition('=') }}
{{ numbers.index(1) }} {{ numbers.count(3) }} {{ numbers.copy() }} {{ (1, 2, 1).count(1) }} {{ d.copy() == d }}
{{ s | upper }} {{ u | lower }} {{ s | title }} {{ "it's a <b>x (yz) q-r" | title }} {{ u | title }} {{ s | capitalize }} {{ n | string }} {{ n | upper }} {{ absent | upper }}|
{{ spaces | trim }}|{{ 'xxhix' | trim('x') }}|{{ s | replace('l', 'L') }}|{{ s | replace('l', 'L', 2) }}|{{ 12345 | replace(3, 'x') }}|{{ s | center(20) }}|
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\nb\n' | indent('> ') }}|{{ '' | indent }}|
{{ s | length }} {{ u | length }} {{ numbers | count }} {{ d | length }} {{ absent | length }} {{ range(5) | length }} {{ d.items() | length }}
{{ absent | default('x') }} {{ absent | d }} {{ none | default('x') }} {{ none | default('x', true) }} {{ empty | default('e', boolean=true) }} {{ no | default(1) }} {{ d.missing | default('m') }} {{ absent | default(none) }}
{{ numbers | first }} {{ numbers | last }} {{ s | first }} {{ s | last }} {{ none_list | first }} {{ d | first }} {{ none_list | last is defined }} {{ numbers | reverse | list }} {{ s | reverse }} {{ u | reverse }}
{{ numbers | join }} {{ mixed | join(', ') }} {{ people | join('; ', attribute='name') }} {{ s | join('.') }} {{ d | join(',') }} {{ absent | join }} {{ [1, absent] | join('-') }}
{{ numbers | sort }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ words | sort(reverse=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ people | sort(attribute='name', reverse=true) | map(attribute='name') | list }}
{{ d | dictsort }} {{ {'b': 2, 'A': 3, 'a': 1} | dictsort }} {{ {'b': 2, 'a': 3} | dictsort(by='value') }} {{ {'b': 2, 'A': 3} | dictsort(true) }} {{ {'b': 2, 'a': 3} | dictsort(reverse=true) }}
{{ words | unique | list }} {{ [1, 1.0, true, 2] | unique | list }} {{ numbers | min }} {{ numbers | max }} {{ words | min }} {{ words | max }} {{ none_list | max }} {{ numbers | sum }} {{ people | sum(attribute='age') }} {{ [0.5, 1] | sum(start=2) }}
{{ people | map(attribute='name') | list }} {{ people | map(attribute='extra', default='-') | list }} {{ words | map('upper') | list }} {{ people | map(attribute='tags.0', default='?') | list }} {{ numbers | map('string') | join('+') }} {{ words | map('replace', 'a', 'x') | list }} {{ ['a', none] | map('default', 'z', true) | list }} {{ words | map('default', default_value='q') | list }}
{{ people | selectattr('role', 'equalto', 'user') | map(attribute='name') | list }} {{ people | rejectattr('role', '==', 'user') | list | length }} {{ people | selectattr('tags') | list | length }} {{ people | selectattr('extra', 'defined') | list | length }} {{ people | selectattr('age', 'gt', 26) | list | length }} {{ people | selectattr('role', 'in', ['tool']) | list | length }}
{{ numbers | select('odd') | list }} {{ numbers | reject('divisibleby', 2) | list }} {{ mixed | select | list }} {{ mixed | select('string') | list }} {{ mixed | reject('none') | list }} {{ numbers | select('lt', 3) | list }}
{{ 'yes' if people | selectattr('role', 'equalto', 'nobody') else 'no' }} {{ (people | selectattr('role', 'equalto', 'nobody') | list) | length }} {{ people | selectattr('role', 'equalto', 'nobody') | first is defined }}
{{ 3.7 | int }} {{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ '3.9' | int }} {{ '0x1f' | int(base=16) }} {{ ' 12 ' | int }} {{ true | int }} {{ none | int }} {{ '-7' | int }} {{ '1_000' | int }} {{ -3.7 | int }}
{{ '2.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ '1e3' | float }} {{ none | float(1.5) }} {{ 'inf' | float }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 42.55 | round(1, 'floor') }} {{ 42.1 | round(method='ceil') }} {{ 7 | round }} {{ -3 | abs }} {{ -2.5 | abs }} {{ 2.5 | round | int }}
{{ s | list }} {{ d | list }} {{ d.items() | list }} {{ d | items | list }} {{ range(3) | list }} {{ (1, 2) | list }} {{ absent | list }} {{ absent | items | list }}
{{ html | e }} {{ html | escape | length }} {{ html | safe }} {{ (html | safe) + '<b>' }} {{ '<i>' + ('x' | safe) }} {{ ('<a>' | safe) ~ '<b>' }} {{ ('<a>' | safe) is string }} {{ (' <a> ' | safe) | trim }} {{ (html | safe) == html }} {{ [html | safe] }} {{ html | forceescape }} {{ ('a<' | safe).upper() }}
{{ '%s has %d, %.2f%%' | format('x', 3, 2.5) }} {{ '%s-%s' % ('a', 1) }} {{ '%5d|%-5s|%05.1f' % (3, 'a', 2.25) }} {{ '%r' % ('a',) }} {{ 'one two  three' | wordcount }}
{{ d | tojson }} {{ mixed | tojson }} {{ u | tojson }} {{ quotes | tojson }} {{ html | tojson }} {{ none | tojson }} {{ yes | tojson }} {{ large | tojson }} {{ (1, 2) | tojson }} {{ {1: 2, none: 3, true: 1, 2.0: 4} | tojson }} {{ whole | tojson }}
{{ d | tojson(indent=2) }} {{ mixed | tojson(indent=4) }} {{ none_dict | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ [[], {}] | tojson(indent=1) }} {{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ u | tojson(ensure_ascii=true) }} {{ d | tojson(true) }} {{ numbers | tojson(indent='\t') }} {{ d | tojson(indent=0) }} {{ people[0] | tojson(indent=2, separators=(',', ' : ')) }}
{{ d is mapping }} {{ numbers is mapping }} {{ numbers is iterable }} {{ s is iterable }} {{ n is iterable }} {{ numbers is sequence }} {{ d is sequence }} {{ s is sequence }} {{ n is sequence }} {{ absent is iterable }} {{ absent is sequence }} {{ none is iterable }} {{ d.items() is sequence }} {{ d.items() is iterable }} {{ range(2) is sequence }} {{ (numbers | map('string')) is sequence }} {{ (numbers | map('string')) is iterable }}
{{ s is string }} {{ n is number }} {{ yes is number }} {{ f is number }} {{ n is integer }} {{ yes is integer }} {{ whole is integer }} {{ whole is float }} {{ f is float }} {{ n is float }} {{ yes is boolean }} {{ n is boolean }} {{ none is none }} {{ nothing is none }} {{ absent is none }} {{ yes is true }} {{ 1 is true }} {{ no is false }} {{ 0 is false }}
{{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ n is divisibleby(2) }} {{ n is eq 7 }} {{ n is ne 7 }} {{ n is gt 3 }} {{ n is lessthan 3 }} {{ n is ge 7 }} {{ n is le 6 }} {{ s is lower }} {{ 'ABC' is upper }} {{ n is in numbers }} {{ 3 is in numbers }} {{ 1 is sameas 1 }} {{ none is sameas none }} {{ s is defined }} {{ absent is undefined }} {{ s is not defined }} {{ not s is defined }} {{ n is not none and yes }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ range is callable }} {{ s is callable }} {{ (s | safe) is escaped }} {{ s is escaped }}
{% for x in numbers %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.previtem }}/{{ loop.nextitem }}:{{ x }} {% endfor %}
{% for x in none_list %}x{% else %}empty{% endfor %}{% for x in numbers if x > 1 %}{{ loop.index }}{{ x }}{% else %}none{% endfor %}{% for x in numbers if x > 9 %}{{ x }}{% else %}none{% endfor %}{% for x in absent %}x{% else %}undefined{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }},{% endfor %}{% for c in u %}{{ c }}.{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for k, v in d | dictsort %}{{ k }}{% endfor %}
{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %} {{ range(2, 8, 3) | list }} {{ range(5, 0, -2) | list }} {{ range(3) }} {{ range(1, 5, 2) }} {{ range(3)[1] }} {{ range(5)[1:3] | list }}
{% for x in numbers %}{% for y in numbers %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %} {% for x in numbers %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{{ loop.depth }} {% endfor %}
{% set x = 1 %}{% for i in numbers %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }} {% if yes %}{% set x = 9 %}{% endif %}{{ x }} {% set y, z = 1, 2 %}{{ y }}{{ z }} {% set w = absent %}{{ w is defined }}
{% set ns = namespace(a=1, b=[]) %}{% for i in numbers %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }} {{ ns.c is defined }} {{ ns.b }} {% set ns.c = 'new' %}{{ ns.c }} {{ ns['a'] }} {% set m = namespace({'q': 1}, r=2) %}{{ m.q }}{{ m.r }}
{% set block %}a {{ n }} b{% endset %}[{{ block }}] {% set block | upper | trim %} text {{ s }} {% endset %}[{{ block }}] {% filter upper %}shout {{ s }}{% endfilter %} {% filter replace('a', 'b') | upper %}banana{% endfilter %}
{% macro m(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='z') }}{{ m(c=1, a=2) }}{{ m() }}{{ m(b=m(0)) }}{% macro r(k) %}{% if k > 0 %}{{ k }}{{ r(k - 1) }}{% endif %}{% endmacro %}{{ r(3) }}
{% macro v() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, z=3) }} {% macro outer() %}{{ top }}{% endmacro %}{% set top = 'late' %}{{ outer() }} {% macro q(a=n, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ q() }} {{ m is defined }} {{ q.name }}
{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('b') %}in {{ s }}{% endcall %} {% macro each(xs) %}{% for x in xs %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(i) each(numbers) %}[{{ i }}]{% endcall %} {% macro maybe() %}{{ 'has' if caller else 'none' }}{% endmacro %}{{ maybe() }}
{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 5 %}{{ a }}{% endwith %}{{ a }} {% with %}{% set k = 1 %}{% endwith %}{{ k is defined }} {% if no %}1{% elif n > 5 %}2{% else %}3{% endif %} {% if absent %}a{% elif empty %}b{% else %}c{% endif %}
a {%- if yes %} b {% endif -%} c {{- n -}} d {#- comment -#} e {%+ if yes %}f{%+ endif %} g {{ '{{' }} {% raw %}{{ not }} {% if %}{% endraw %} h {%- raw -%} x {{ y }} {%- endraw -%} i
{{ "a\tb\\n\x41\u00e9\U0001F600\'\"\101\q" }} {{ 'it''s' }} {{ "x" 'y' }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1e3 }} {{ 1.5e-3 }} {{ 10.0 }}
{{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ dict({'k': 1}, z=2) }} {% set j = joiner(', ') %}{{ j() }}a{{ j() }}b{{ j() }}c {{ {'a': 1, 'b': 2}.items() | list }} {{ {}.get('x', {}).get('y', 'deep') }}
{{ {'a': [1, {'b': 2}]}['a'][1]['b'] }} {{ [[1, 2], [3]][0][1] }} {{ ('a', 'b')[1] }} {{ 'abc'.upper().lower()[1] }} {{ (n if n else 0) | string + '!' }} {{ not n is odd }} {{ n | string | length }} {{ -n | abs }} {{ 3 | float / 2 }}
{{ people | map(attribute='name') | map('lower') | sort | join(',') }} {{ (d.items() | list)[0][0] }} {{ d.b if d.b is defined else 'x' }} {{ people[0]['name'][0] }} {{ people[-1].name }} {{ loop is defined }} {{ absent is defined and absent.x }}
{% set a = [1] %}{% set b = a + [2] %}{{ a }}{{ b }} {% for i in [1, 2] %}{% set a = a + [i] %}{{ a }}{% endfor %}{{ a }} {% for n in numbers %}{{ n }}{% endfor %}{{ n }} {% generation %}gen {% set g = 1 %}{{ g }}{% endgeneration %}{{ g is defined }}
{% macro f(a=b, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ f() }}{{ f(b=2) }}{% macro e(a=n, n=1) %}{{ a }}{{ n }}{% endmacro %}{{ e() }}{{ e(n=2) }} {% macro g(b=1, a=b) %}{{ a }}{{ b }}{% endmacro %}{{ g() }}{{ g(2) }}{{ g(a=3) }} {% macro h(n=n) %}{{ n }}{% endmacro %}{{ h(1) }}
{% set ns = namespace(a=1) %}{% macro up() %}{% set ns.a = ns.a + 1 %}{% endmacro %}{{ ns.a }}{{ up() }}{{ ns.a }}{% for x in numbers %}{{ ns.a }}{{ up() }}{{ ns['a'] }}{% endfor %}{{ ns.a ~ up() ~ ns.a }}{{ ns.a + 1 if up() == '' else 0 }}
{% set p = people[0] %}{{ p.name }}{{ p.age }}{% set p = people[1] %}{{ p.name }}{% if yes %}{% set p = people[2] %}{{ p.name }}{% endif %}{{ p.name }}{% for p in people %}{{ p.name }}{% set p = people[0] %}{{ p.name }}{% endfor %}{{ p.name }}
{% for p in people %}{% if p.tags is defined and p.tags %}{{ p.tags[0] }}{% elif p.extra is defined %}{{ p.extra }}{% elif p.name == 'adam' %}{{ p.tags }}{{ p.name }}{% else %}{{ p.none }}{% endif %}{{ p.tags }}{% endfor %}
{% for x in numbers %}{% if loop.first %}{% set a = x %}{% elif loop.last %}{% set a = 'l' %}{% endif %}{{ a }}{% if a is defined %}{% set b = a %}{% else %}{% set c = 5 %}{{ c }}{% endif %}{{ b }}{{ c }}{% endfor %}{{ a }}{{ b }}
{% for x in numbers %}{% set outer = loop %}{% for y in numbers %}{{ outer.index }}{{ loop.index }}{{ outer.last }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}{{ loop.index }}{{ loop['index'] }}{{ loop | length }}{% endfor %}
{% for x in numbers %}{% macro m() %}{{ x }}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}{% for x in numbers if loop is not defined %}{{ x }}{% endfor %}
{% for i in range(4) %}{% set t %}{% if i == 1 %}{% continue %}{% endif %}[{{ i }}{% if i == 3 %}{% break %}{% endif %}]{% endset %}{{ t }}{% filter upper %}a{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endfilter %}{% endfor %}end
{% macro fact(k) %}{% set below = fact(k - 1) | int if k > 1 else 1 %}{{ k * below }}{% endmacro %}{{ fact(5) }} {% macro even(k) %}{{ 'even' if k == 0 else odd_(k - 1) }}{% endmacro %}{% macro odd_(k) %}{{ 'odd' if k == 0 else even(k - 1) }}{% endmacro %}{{ even(5) }}
{% macro list(items) %}<{% for i in items %}{{ caller(i, loop.index) }}{% endfor %}>{{ varargs }}{{ kwargs }}{% endmacro %}{% call(i, k=9) list(numbers, 7, z=8) %}{{ i }}{{ k }}{{ n }}{% call(j) list([i]) %}({{ j }}{{ i }}){% endcall %}{% endcall %}
{% macro m(p) %}{{ p }}{% set p = 'inner' %}{{ p }}{{ q }}{% endmacro %}{% set q = 1 %}{{ m('x') }}{% set q = 2 %}{{ m('y') }}{{ p is defined }} {% with q = 3, r = q %}{{ q }}{{ r }}{{ m('z') }}{% set q = 4 %}{{ q }}{% endwith %}{{ q }}
{{ 'a\'b"c\\d\n]]e%sf\0g\x1bh' | tojson }}{{ d['é'] }}{{ {"]]": 1, 'x\ny': 2, '%d': 3}['%d'] }} {% set é = 'name' %}{{ é }}{% set end = 1 %}{% set nil = 2 %}{% set out = 3 %}{% set type = 4 %}{{ end }}{{ nil }}{{ out }}{{ type }}{{ K is defined }}{{ V is defined }}{{ os is defined }}
{{ 1 < 2 < 3 }} {{ 3 > 2 < 1 }} {{ n == 7 == 7.0 }} {{ yes == 1 }} {{ 'a' == n }} {{ n != 'a' }} {{ none == none }} {{ [] == [] }} {{ ('user' | safe) == 'user' }} {{ ('user' | safe) in ['user'] }} {{ n in ['a', 'b'] }} {{ absent in ['a'] }} {{ absent == 'a' }} {{ 'b' not in ('a', 'b') }} {{ -1 in [-1] }} {{ 'a' in [] }}
{{ no and absent.x }} {{ yes or absent.x }} {{ not (no or none) }} {{ (n and s) or 'x' }} {{ 0 or '' or [] or 'last' }} {{ 1 and 'a' and [2] }} {{ absent.x if no }} {{ (yes and no) is false }} {{ [1, (no or 2), (3 if no else 4)] }} {{ 'x' if absent is defined and absent.x else 'y' }}
{{ d | default('x') }}{{ absent | default(n) }}{{ absent | d }}{{ '' | default('e', true) }}{{ none | default('z') }} {{ d.get('b') }}{{ d.get('q') }}{{ d.get('q', absent) }}{{ d.get('q', no) }}{{ {'x': false}.x }}{{ {'x': none}['x'] }} {{ s is string }}{{ (s | safe) is string }}{{ 5 is defined }}{{ 'a' is string }}{{ 'a'.nothing is defined }}
{{ 'a' + 'b' + s + 'c' }} {{ 1 + 2 + n }} {{ [1] + [2] + numbers }} {{ 'a' ~ 1 ~ none ~ 2.0 ~ absent ~ s }} {{ ('<' | safe) + '>' + '<' }} {{ ('<' | safe) ~ '>' }} {{ 'x' * 2 + 'y' }} {{ (s + s) | length }} {{ 'a' + (s if no else 'b') + 'c' }}
{% set ns = namespace() %}{% for x in [1, 2] %}{{ ns.m() if x == 2 }}{% set y = x %}{% macro m() %}[{{ y }}{{ x }}]{% endmacro %}{% set ns.m = m %}{{ ns.m() }}{% endfor %}
{% for loop in numbers %}{% endfor %}
{% for x in numbers %}{{ loop.index }}{% set loop = x %}{% endfor %}
{{ absent.x }}
{{ absent['x'] }}
{{ d.missing.deeper }}
{{ absent + 1 }}
{{ 'a' + 1 }}
{{ 1 + none }}
{{ none.x.y }}
{{ absent() }}
{{ s() }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 < 'a' }}
{{ none | length }}
{{ n | length }}
{% for x in n %}{% endfor %}
{% for x in none %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{{ absent | tojson }}
{{ 1 in n }}
{{ 1 in s }}
{{ none in d.items }}
{{ raise_exception('stop: ' ~ s) }}
{% if yes %}
{{ 'a' | nosuchfilter }}
{{ 'a' is nosuchtest }}
{% nosuchtag %}
{{ s.nosuchmethod() }}
{{ numbers.append(4) }}
{% macro m() %}{% endmacro %}{{ m(caller=1) }}
{{ 0.5 | round }} {{ 1.5 | round }} {{ -2.5 | round }} {{ 0.125 | round(2) }} {{ 0.375 | round(2) }} {{ '%.0f %.1f %f' % (0.5, 0.25, 1) }} {{ 2.5e15 | round }} {{ 1e300 | round(1) }}
{{ d.pop('b') }}
{{ [1, 2 }}
{{ 'open }}
{# open
{% endfor %}
{% for x in numbers %}{% endif %}
{{ }}
{{ 1 + }}
{{ a b }}
{% set x %}
{% macro m(a=1, b) %}{% endmacro %}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(z=2) }}
{% set s.x = 1 %}
{% break %}
{{ (numbers | map('string')) | length }}
{{ 'a,b'.split('') }}
{{ ['x'] | join(1, 2, 3) }}
{{ s.index('zz') }}
{{ range(1000000) }}
{{ [3, 'a'] | sort }}
{{ d | dictsort(by='x') }}
{{ n | items | list }}
{{ '%d' % 'x' }}
{{ '%s %s' % ('x',) }}
{{ namespace(_a=1) }}
""".strip("\n").split("\n")

# What a line of its own cannot say.
SNIPPETS += [
    "{% if yes %}\n  a\n  {% endif %}\n  b\n{{ n }}\n\n",
    "  {% for x in numbers %}  \n  {{ x }}\n  {% endfor %}\nend\n",
    "x\n  {# note #}  \ny\n\t{%- set a = 1 %}\n{{ a }}\r\nz\r",
    "a\n  {%+ if yes %}  b\n  {%+ endif +%}\n c",
    "{%- if yes -%}\n\n  a  \n\n{%- endif -%}\n\n",
    "a  {{- n }}\n{{ n -}}  \n b",
    "{{ 'a\nb' }}\n{{ [1,\n  2,\n] }}\n{% set x = {\n 'k': 1,\n} %}{{ x }}",
    "{% raw %}\n  {{ x }}\n{% endraw %}\n  {% raw %} a {% endraw %}\nb",
    "a \u00a0{%- if yes %}b{% endif %}\u2003\n\u00a0{% if yes %}c{% endif %}",
    "{% macro f() %}\n  x\n{% endmacro %}\n[{{ f() }}]\n{% set y %}\n  z\n{% endset %}\n[{{ y }}]",
    "{% for m in people %}{% if loop.first %}{% set who = m.name %}{% endif %}{{ who }}{{ m.name }} {% endfor %}{{ who }}",
    "\n\n{{ n }}\n\n\n",
    "",
    "{{ s }}{# a #}{# b\nc #}\n{{ u }}",
    "line one\n{{ absent.x }}",
]
