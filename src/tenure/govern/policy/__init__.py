"""Policies: files of rules that say of every action on the world whether it is denied, allowed, or needs people."""

from tenure.govern.policy.evaluating import Compiled
from tenure.govern.policy.facts import facts_of
from tenure.govern.policy.loading import load, load_file
from tenure.govern.policy.model import Policy, Rule
from tenure.govern.policy.policies import Policies

__all__ = ["Compiled", "Policies", "Policy", "Rule", "facts_of", "load", "load_file"]
