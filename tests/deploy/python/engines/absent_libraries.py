#!/usr/bin/env python3
# Lets a library that was built for CUDA load on a machine without it:
#   python3 absent_libraries.py FOLDER
# makes, in FOLDER, each shared library that the others there name and that this system lacks.
# Every function in them returns 100, cudaErrorNoDevice, or where it names an error the words for it:
# whoever asks hears that there is no device.
# PyPI's torch is linked with 3.4 GB of CUDA libraries that it uses on a GPU alone.
import collections
import ctypes
import pathlib
import subprocess
import sys
import tempfile

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection

FUNCTIONS = """
.text
number: mov $100, %eax
        ret
words:  lea text(%rip), %rax
        ret
.section .rodata
text:   .asciz "no CUDA on this machine"
.section .note.GNU-stack,"",@progbits
"""
SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
NOT_CUDA = ("Py", "_Py", "_Z")  # Python's, and C++'s, whose library everybody here shares
TEXTS = ("ErrorString", "ErrorName")  # of functions that return a string


class Library:
    """What one shared library names: others, and symbols of theirs with their versions."""

    def __init__(self, path):
        with open(path, "rb") as file:
            sections = list(ELFFile(file).iter_sections())

            def of(kind):
                return next((section for section in sections if isinstance(section, kind)), None)

            dynamic = of(DynamicSection)
            self.needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
            versions = {}  # index -> (soname, version)
            if need := of(GNUVerNeedSection):
                for library, entries in need.iter_versions():
                    versions |= {entry["vna_other"]: (library.name, entry.name)
                                 for entry in entries}
            indices = of(GNUVerSymSection)
            self.defined, self.undefined = set(), set()
            for number, symbol in enumerate(file_symbols(sections)):
                if symbol["st_info"]["bind"] not in ("STB_GLOBAL", "STB_WEAK") or not symbol.name:
                    continue
                if symbol["st_shndx"] != "SHN_UNDEF":
                    self.defined.add(symbol.name)
                elif symbol["st_info"]["bind"] == "STB_GLOBAL":
                    index = indices.get_symbol(number)["ndx"] if indices else None
                    self.undefined.add((symbol.name, *versions.get(index, (None, None))))


def file_symbols(sections):
    return next(section for section in sections if section.name == ".dynsym").iter_symbols()


def loads(soname):
    """From a folder of the system's: a CUDA elsewhere, without its driver, crashes with these."""
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    with open("/proc/self/maps") as maps:
        return any(line.split()[-1].startswith(SYSTEM) and soname in line for line in maps)


def make(path, symbols):
    """`symbols`: version (None: without one) -> names."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "source.S"), pathlib.Path(folder, "versions")
        names = sorted(set().union(*symbols.values()))
        source.write_text(FUNCTIONS + "".join(
            f".globl {name}\n.type {name}, @function\n"
            f".set {name}, {'words' if name.endswith(TEXTS) else 'number'}\n" for name in names))
        script.write_text("\n".join(f"{version} {{ global: {'; '.join(sorted(own))}; }};"
                                    for version, own in symbols.items() if version))
        option = [f"-Wl,--version-script={script}"] if any(symbols) else []
        subprocess.run(["gcc", "-shared", "-nostdlib", "-o", path, source,
                        f"-Wl,-soname,{path.name}", *option], check=True)


def main(folder):
    libraries = [Library(path) for path in sorted(folder.glob("*.so*")) if path.is_file()]
    here = {path.name for path in folder.iterdir()}
    needed = set().union(*(library.needed for library in libraries))
    absent = sorted(name for name in needed - here if not loads(name))
    defined = set().union(*(library.defined for library in libraries))
    wanted = {name: collections.defaultdict(set) for name in absent}
    for library in libraries:
        # A symbol without a version is found in any library: it goes to one that its user names.
        own = sorted(library.needed & set(absent))
        for name, soname, version in library.undefined:
            if soname in wanted:
                wanted[soname][version].add(name)
            elif soname is None and own and name not in defined and not name.startswith(NOT_CUDA):
                wanted[own[0]][None].add(name)
    for name in absent:
        make(folder / name, wanted[name])
    print(f"{folder}: {len(absent)} libraries that are not on this machine: {' '.join(absent)}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
