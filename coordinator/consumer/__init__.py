"""Groups of the consumer protocol (KIP-848): members say what they subscribe to and own, the coordinator does the rest.

Three epochs, one behind the other. The group's grows when members, subscriptions or their topics change. The target
assignment, what everybody shall have, is computed for a group epoch. Every member moves to the target's epoch on its
own: it first gives up what it shall not have, and is given what others have given up.

part        | what it knows
----------- | -------------------------------------------------------------------------------------------------
state       | a group as its records say, and how one record changes it
member      | one member
reconcile   | a member's next step towards the target: the table of states
target      | group epoch and target assignment
catalog     | the cluster's topics
topics      | what of them a group sees; patterns
heartbeat   | what a member asks and is answered
departure   | members that leave, are silent or too slow
group       | all of it as one group among the coordinator's, its timers and writes
classic     | members of the classic protocol in such a group
migration   | a group changes from one protocol to the other
describe    | ConsumerGroupDescribe
shard       | which group a request means
"""
