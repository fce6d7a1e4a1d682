"""compiler/tuning"""
