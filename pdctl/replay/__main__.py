"""``torchrun --nproc-per-node N -m pdctl.replay TRACE``: one rank of a replay whose ranks torchrun starts."""

if __name__ == "__main__":
    from pdctl.commands.replay_torchrun import main

    main()
