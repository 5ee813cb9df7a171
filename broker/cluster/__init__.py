"""`pybroker cluster up`: several brokers and a ZooKeeper on this machine, as processes.

`plan` says what is to run and writes its files, `zookeeper` finds an installed ZooKeeper, `process` is one child,
`local` is all of them together, `command` the command line. The tests of this project start their clusters with them.
"""
