"""scheduler/policies"""
