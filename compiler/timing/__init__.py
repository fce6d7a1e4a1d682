"""compiler/timing"""
