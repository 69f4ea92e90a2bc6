"""Feedback between operators in tasks of their own: readers request what they demand, and producers keep the rest back.

The entry is `feedback.DistributedFeedback`, one per task. `services.task.feedback` carries its messages through Kafka.

A reader requests by *signatures* (`kinds`) that tuples it does not demand be kept back (`consumer`). The producer keeps
them back and reports so in band (`producer`). Tuples that the reader demands after all arrive late, and the reader
waits for them before it continues. A kind that is resumed so often that the answers cost more than is saved rests
(`payoff`). Feedback applies only to inputs that are results of joins, by equalities. For an input of a split join it
applies only where one input of its producer has the whole key.

By the same requests and notices the joins of a new plan make results from before a plan change on demand (`on_demand`).
"""
