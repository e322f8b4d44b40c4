from reposync.cli.main import main

main()
