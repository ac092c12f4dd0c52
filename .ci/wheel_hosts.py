#!/usr/bin/env python3
# A tier over two hosts, and on another, whose file system is ROOT, the wheel that is installed there
# in /root/environment: .ci/wheel_hosts.py ROOT, as root. See wheel_root.sh.
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/deploy/hosts"))
from hosts_test import TOKEN, HostTier  # noqa: E402
from lab import why_not  # noqa: E402

LIMIT_S = 300


def main():
    root = sys.argv[1]
    if reason := why_not():
        raise SystemExit(f"wheel_hosts: no hosts can be made here: {reason}")
    with HostTier(guests=("engine",)) as tier:
        check = tier.lab.start(
            "engine", "env", "-i", "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "chroot", root, "/root/environment/bin/python", "-B",
            "/root/tests/deploy/python/wheel_check.py", tier.url, TOKEN)
        status = check.wait(LIMIT_S)
        print(check.output(), end="")
        if status != 0:
            raise SystemExit(f"wheel_hosts: the check ended with status {status}; "
                             f"the pool said:\n{tier.pool.output()}")
        tier.wait_all_free()
        if tier.metric("tributary_tokens_total") < 1:
            raise SystemExit("wheel_hosts: the tier has computed nothing")


if __name__ == "__main__":
    main()
