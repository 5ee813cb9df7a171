"""This broker's replicas: leader and follower state, high watermark, ISR, and what waits on a partition."""
