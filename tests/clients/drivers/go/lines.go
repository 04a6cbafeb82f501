// Clients in Go: `driver azservicebus` is Azure's, `driver amqp` is go-amqp, on which it stands.
//
// Requests as JSON lines on standard input, answers as JSON lines on standard output.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/coder/websocket"
)

type request map[string]any

func (r request) text(name string) string {
	text, _ := r[name].(string)
	return text
}

type operations map[string]func(context.Context, request) (any, error)

var address, transport = os.Getenv("HOST") + ":" + os.Getenv("PORT"), os.Getenv("TRANSPORT")

// Answer {"do": name, ...its arguments} with {"result": …} or {"error": …}, until standard input ends.
func serve(does operations) {
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked request
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Second)
		answer := map[string]any{}
		if answer["result"], err = does[asked.text("do")](ctx, asked); err != nil {
			answer["error"] = err.Error()
		}
		cancel()
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
	}
}

func trusting() *tls.Config {
	pem, err := os.ReadFile(os.Getenv("CA_FILE"))
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: roots, ServerName: os.Getenv("HOST")}
}

func webSocket(ctx context.Context, url string) (net.Conn, error) {
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting()}}
	options := &websocket.DialOptions{Subprotocols: []string{"amqp"}, HTTPClient: browser}
	socket, _, err := websocket.Dial(ctx, url, options)
	if err != nil {
		return nil, err
	}
	return websocket.NetConn(context.Background(), socket, websocket.MessageBinary), nil
}

func main() {
	map[string]func(){"azservicebus": azservicebusClient, "amqp": amqpClient}[os.Args[1]]()
}
