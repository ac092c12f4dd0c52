#!/usr/bin/env bash
# Makes a base system ready for the program, inside an image: packages, a user without privileges,
# and an SSH server that this user can run, by which mpirun reaches a pool's other pods.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
user_id=10001 # outside the range of people and system services
ssh_port=2222 # one that needs no privilege

EXTRA_PACKAGES=${EXTRA_PACKAGES-}
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
# shellcheck disable=SC2046,SC2086  # lists of packages
apt-get -q install -y --no-install-recommends $(<"$here/runtime_packages") $EXTRA_PACKAGES
"$here/setup.sh" run pod
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log

useradd --uid "$user_id" --create-home --shell /bin/bash tributary
# Installing the package made host keys, which every pod of this image would share. The pod gets its
# keys from a Secret; the server reads them from the user's folder.
rm -f /etc/ssh/ssh_host_*
home=/home/tributary
cat >"$home/.sshd_config" <<TEXT
Port $ssh_port
HostKey $home/.ssh/id_rsa
PidFile none
AuthorizedKeysFile $home/.ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
# The Secret's folder belongs to root and is readable by the group.
StrictModes no
AllowUsers tributary
TEXT
cat >"/etc/ssh/ssh_config.d/tributary.conf" <<TEXT
Host *
  Port $ssh_port
  # Pods get new names and addresses with every start; the NetworkPolicy decides who may reach whom.
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
TEXT
install -d -m 700 -o tributary "$home/.ssh"
chown tributary "$home/.sshd_config"
