#!/bin/bash
# Formats the name space once, then runs the NameNode.
set -euo pipefail
[ -d /data/name/current ] || hdfs namenode -format -nonInteractive
exec hdfs namenode
