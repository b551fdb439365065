// Command agent says how many words a file has, by a tool that counts them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	tieline "tieline.dev/client/go"
)

var countWords = tieline.Tool{
	Name:           "count_words",
	Description:    "Counts the words of a file.",
	ParametersJSON: fmt.Sprintf(`{"type": "object", "properties": {"name": {"enum": [%q]}}, "required": ["name"]}`, os.Args[1]),
	Call: func(_ context.Context, arguments string) (string, error) {
		var file struct{ Name string }
		if err := json.Unmarshal([]byte(arguments), &file); err != nil {
			return "", err
		}
		text, err := os.ReadFile(file.Name)
		return fmt.Sprintf("%s has %d words.", file.Name, len(strings.Fields(string(text)))), err
	},
}

func main() {
	client, err := tieline.Dial("127.0.0.1:50051", tieline.Options{Key: os.Getenv("TIELINE_API_KEY")})
	if err != nil {
		log.Fatal(err)
	}
	connection, err := client.Connect(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	create := tieline.NewCreate(tieline.UserText("Use count_words: how many words has " + os.Args[1] + "?"))
	response, err := connection.Ask(context.Background(), create, countWords)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tieline.Text(response))
}
