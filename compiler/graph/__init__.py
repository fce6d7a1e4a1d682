"""compiler/graph"""
