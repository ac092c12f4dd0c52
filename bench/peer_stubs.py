# Empty libraries in place of CUDA's, for PyPI's PyTorch on a machine without a GPU: usage
# `peer_stubs.py TORCH/lib`. That package names 3 GB of CUDA libraries that the loader must find,
# though no product on a CPU calls them. Every function of the empty ones returns 100
# (cudaErrorNoDevice). Needs gcc, readelf and nm.
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

# Libraries that the loader finds without us.
SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|util|cuda)\.so|ld-linux")
# Functions of libraries without versions.
CUDA = re.compile(r"nccl|cuFile|cusparseLt|nvshmem|nvtx|cu[A-Z]|cuda|cupti")


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def make(folder, name, versions, plain):
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch, "stub.S")
        symbols = sorted(set(plain).union(*versions.values()))
        source.write_text(".text\nstub: mov $100, %eax\n ret\n" + "".join(
            f".globl {s}\n.type {s}, @function\n.set {s}, stub\n" for s in symbols) +
            '.section .note.GNU-stack,"",@progbits\n')
        command = ["gcc", "-shared", "-nostdlib", "-o", str(folder / name), str(source),
                   f"-Wl,-soname,{name}"]
        if versions:
            script = pathlib.Path(scratch, "stub.map")
            script.write_text("".join(f"{version} {{ global: {'; '.join(sorted(of))}; }};\n"
                                      for version, of in versions.items()))
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def main():
    folder = pathlib.Path(sys.argv[1])
    libraries = sorted(folder.glob("*.so")) + sorted(folder.glob("*.so.*"))
    present = {library.name for library in libraries}
    needed, defined, undefined = set(), set(), set()
    file_of = {}  # a version: the library that must define it
    for library in libraries:
        for line in lines("readelf", "-d", "-W", library):
            needed.update(re.findall(r"NEEDED.*\[(.*)\]", line))
        file = None
        for line in lines("readelf", "-V", "-W", library):
            if found := re.search(r"File: (\S+)", line):
                file = found[1]
            elif file and (found := re.search(r"Name: (\S+)\s+Flags", line)):
                file_of[found[1]] = file
        defined.update(line.split()[-1].split("@")[0]
                       for line in lines("nm", "-D", "--defined-only", library) if line)
        undefined.update(line.split()[-1]
                         for line in lines("nm", "-D", "--undefined-only", library) if line)
    missing = sorted(name for name in needed
                     if name not in present and not SYSTEM.match(name))
    versions = collections.defaultdict(lambda: collections.defaultdict(set))
    plain = set()
    for name in undefined:
        symbol, _, version = name.replace("@@", "@").partition("@")
        if version:
            versions[file_of.get(version)][version].add(symbol)
        elif symbol not in defined and CUDA.match(symbol):
            plain.add(symbol)
    unversioned = [name for name in missing if not versions[name]]
    for name in missing:
        make(folder, name, versions[name], plain if name in unversioned[:1] else ())
    print(f"peer_stubs: {len(missing)} empty libraries in {folder}")


if __name__ == "__main__":
    main()
