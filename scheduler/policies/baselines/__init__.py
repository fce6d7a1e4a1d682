"""scheduler/policies/baselines"""
