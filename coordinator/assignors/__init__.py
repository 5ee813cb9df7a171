"""Assignors of the consumer protocol (KIP-848): on the broker, they divide a group's partitions among its members."""
