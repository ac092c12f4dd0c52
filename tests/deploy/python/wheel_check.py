#!/usr/bin/env python3
# The installed package by itself: wheel_check.py URL TOKEN, with NumPy alone beside it. Decodes
# through the tier at URL and through pools of this process, compares with float64, and lists the
# libraries of the process. Run by .ci/wheel_root.sh where nothing else is installed.
import pathlib
import platform
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import numpy

import golden
import tributary

LAYERS, PROMPT, STEPS = 2, 300, 3  # five leaves of 64 tokens
# The C and C++ runtime, which every program of the system uses; Python's and NumPy's own besides.
SYSTEM = ("ld-linux", "libc.so", "libm.so", "libstdc++.so", "libgcc_s.so", "libpthread.so",
          "libdl.so", "librt.so", "libresolv.so", "libutil.so")


def check(what, condition):
    if not condition:
        raise SystemExit(f"wheel_check: not so: {what}")
    print(f"  {what}")


def decode(client):
    """(o, lse) of all steps and layers, and their largest error beside float64."""
    rng = numpy.random.default_rng(5)
    results, worst = [], 0.0
    with client.admit(PROMPT, 16, spread="all") as sequence:
        shape = sequence.shape
        rows = [golden.to_bf16(rng.standard_normal((PROMPT + STEPS, shape.latent_dim)))
                for _ in range(LAYERS)]
        for layer in range(LAYERS):
            sequence.push(layer, 0, rows[layer][:PROMPT])
        sequence.wait_ready()
        holders = {rank for _, _, rank in sequence.extents}
        for length in range(PROMPT, PROMPT + STEPS):
            with client.step([sequence]) as step:
                for layer in range(LAYERS):
                    query = golden.to_bf16(
                        rng.standard_normal((1, shape.heads, shape.latent_dim)))
                    o, lse = step.attend(layer, query, rows[layer][length:length + 1])
                    exact, exact_lse = golden.attend(
                        golden.from_bf16(query[0]), golden.from_bf16(rows[layer][:length + 1]),
                        shape.kv_lora_rank, shape.softmax_scale)
                    worst = max(worst, golden.relative_error(o[0], exact),
                                golden.relative_error(lse[0], exact_lse))
                    results.append((o.tobytes(), lse.tobytes()))
    return results, worst, holders


def foreign_libraries():
    """Of this process, neither the system's, nor Python's, nor inside of a package."""
    environment = pathlib.Path(sys.prefix).resolve()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
    return sorted(path for path in paths
                  if not pathlib.Path(path).is_relative_to(environment)
                  and not pathlib.Path(path).name.startswith(SYSTEM)
                  and "/python3" not in path)


def main():
    url, token = sys.argv[1:]
    print(f"tributary in {platform.freedesktop_os_release()['PRETTY_NAME']}, CPython "
          f"{platform.python_version()}, NumPy {numpy.__version__}, {tributary._core.__file__}")
    # Rows and queries are exact in float64; some kernels round weights to bf16 (2^-9) once more.
    bound = 2.0**-8
    results, worst, holders = decode(tributary.Client(url, token=token))
    check(f"a tier on other hosts: {len(results)} layer calls over {len(holders)} workers, "
          f"relative error {worst:.1e} beside float64", worst < bound and len(holders) == 4)
    try:
        tributary.Client(url, token="another").admit(1, 1)
    except tributary.PermissionDenied:
        check("a wrong token is refused", True)
    else:
        check("a wrong token is refused", False)
    own = {}
    for workers in (1, 4):
        with tributary.Pool(workers, "deepseek-v2-lite", layers=LAYERS, leaf_tokens=64,
                            kv_gib=0.05, threads=1) as pool:
            own[workers], worst, holders = decode(pool)
            check(f"a pool of {workers} in this process: relative error {worst:.1e}",
                  worst < bound and len(holders) == workers)
    check("the same bits from 1 and from 4 workers", own[1] == own[4])
    foreign = foreign_libraries()
    check(f"libraries from elsewhere: {', '.join(foreign) or 'none'}",
          not any(name in path for path in foreign
                  for name in ("fmt", "isal", "hwy", "ucp", "uct", "ucs", "mpi", "boost", "cuda")))


if __name__ == "__main__":
    main()
