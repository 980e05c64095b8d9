"""Policies: files of rules that allow or deny every action, or require an approval for it."""

from tenure.govern.policy.cache import PolicyCache
from tenure.govern.policy.evaluation import CompiledPolicy
from tenure.govern.policy.loader import load_policy, load_policy_file

__all__ = ["CompiledPolicy", "PolicyCache", "load_policy", "load_policy_file"]
