"""The type checker behind `--check-shapes`:

A whole number is a fine float, as everywhere in Python.
"""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
